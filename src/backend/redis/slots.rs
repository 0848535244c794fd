//! Hash slots: which part of a cluster has a key.
//!
//! <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#key-distribution-model>

use std::sync::LazyLock;

/// How many there are.
pub(super) const SLOTS: u16 = 16_384;

/// CRC16 of the XMODEM kind, a byte at a time.
const CRC: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = match crc & 0x8000 {
                0 => crc << 1,
                _ => crc << 1 ^ 0x1021,
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The smallest number for each slot, made when it is first needed, in some milliseconds.
static TAGS: LazyLock<Box<[u32]>> = LazyLock::new(|| {
    const NONE: u32 = u32::MAX;
    let mut tags = vec![NONE; usize::from(SLOTS)];
    let mut missing = tags.len();
    let mut number = Decimal::default();
    for n in 0.. {
        let tag = &mut tags[usize::from(crc16(number.text()) % SLOTS)];
        if *tag == NONE {
            *tag = n;
            missing -= 1;
            if missing == 0 {
                break;
            }
        }
        number.increase();
    }
    tags.into()
});

/// A number that counts up in digits: to write each anew takes several times as long.
struct Decimal {
    digits: [u8; 10],
    start: usize,
}

impl Default for Decimal {
    fn default() -> Self {
        Self {
            digits: [b'0'; 10],
            start: 9,
        }
    }
}

impl Decimal {
    fn text(&self) -> &[u8] {
        &self.digits[self.start..]
    }

    fn increase(&mut self) {
        for (place, digit) in self.digits.iter_mut().enumerate().rev() {
            self.start = self.start.min(place);
            if *digit < b'9' {
                *digit += 1;
                return;
            }
            *digit = b'0';
        }
    }
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        crc << 8 ^ CRC[usize::from((crc >> 8) as u8 ^ byte)]
    })
}

/// The slot of a key, or of a sharded channel.
pub(super) fn slot(key: &[u8]) -> u16 {
    crc16(hashed_part(key)) % SLOTS
}

/// What stands between the first `{` and the first `}` after it, unless that is nothing.
fn hashed_part(key: &[u8]) -> &[u8] {
    let find = |bytes: &[u8], wanted| bytes.iter().position(|&byte| byte == wanted);
    let tag = find(key, b'{').and_then(|open| {
        let rest = &key[open + 1..];
        find(rest, b'}').map(|close| &rest[..close])
    });
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// The smallest number that hashes to this slot as a text: whatever is called `..{<tag>}` is in
/// the slot. Every process must find the same, so this never changes.
pub(super) fn tag(slot: u16) -> u32 {
    TAGS[usize::from(slot % SLOTS)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(crc16(b""), 0);
        assert_eq!(slot(b"123456789"), 0x31c3 % SLOTS);
    }

    /// The examples of the specification.
    #[test]
    fn tags_decide() {
        let hashed = |key: &'static str| std::str::from_utf8(hashed_part(key.as_bytes())).unwrap();
        assert_eq!(hashed("{user1000}.following"), "user1000");
        assert_eq!(hashed("foo{}{bar}"), "foo{}{bar}");
        assert_eq!(hashed("foo{{bar}}zap"), "{bar");
        assert_eq!(hashed("foo{bar}{zap}"), "bar");
        assert_eq!(hashed("foo}{bar"), "foo}{bar");
        assert_eq!(hashed("}{bar}"), "bar");
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
    }

    #[test]
    fn every_slot_has_its_smallest_number() {
        let begun = std::time::Instant::now();
        let last = (0..SLOTS).map(tag).max().unwrap();
        println!("{last} is the largest, found in {:?}", begun.elapsed());
        let mut first = vec![None; usize::from(SLOTS)];
        for n in 0..=last {
            let text = format!("x{{{n}}}");
            first[usize::from(slot(text.as_bytes()))].get_or_insert(n);
        }
        for slot in 0..SLOTS {
            assert_eq!(first[usize::from(slot)], Some(tag(slot)), "{slot}");
        }
        // Others rely on them: other versions of us.
        assert_eq!([0, 1, 866, 16_383].map(tag), [3_560, 22_179, 2_622, 39_296]);
    }
}
