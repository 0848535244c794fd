//! Bytes for what is stored, and back: nothing here knows what it means.

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// Bytes that do not say what they should.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Corrupt;

/// Writes lengths as LEB128: seven bits a byte, the low ones first, no longer than needed.
#[derive(Debug)]
pub(crate) struct Writer(BytesMut);

impl Writer {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self(BytesMut::with_capacity(bytes))
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        self.0.put_u8(byte);
    }

    pub(crate) fn short(&mut self, number: u16) {
        self.0.put_u16(number);
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.0.put_slice(bytes);
    }

    pub(crate) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.byte(number as u8 | 0x80);
            number >>= 7;
        }
        self.byte(number as u8);
    }

    pub(crate) fn part(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.raw(bytes);
    }

    /// Each name with all its values, in the map's order.
    pub(crate) fn headers(&mut self, headers: &HeaderMap) {
        self.number(headers.keys_len() as u64);
        for name in headers.keys() {
            self.part(name.as_str().as_bytes());
            let values = headers.get_all(name);
            self.number(values.iter().count() as u64);
            for value in values {
                let sensitive = u64::from(value.is_sensitive());
                self.number((value.len() as u64) << 1 | sensitive);
                self.raw(value.as_bytes());
            }
        }
    }

    pub(crate) fn finish(self) -> Bytes {
        self.0.freeze()
    }
}

/// Reads what [`Writer`] wrote and only that: of each value there is one form. What it returns
/// shares the memory of the whole.
#[derive(Debug)]
pub(crate) struct Reader(Bytes);

impl Reader {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }

    pub(crate) fn raw(&mut self, length: usize) -> Result<Bytes, Corrupt> {
        if length > self.0.len() {
            return Err(Corrupt);
        }
        Ok(self.0.split_to(length))
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Corrupt> {
        let bytes = self.raw(N)?;
        bytes.as_ref().try_into().map_err(|_| Corrupt)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Corrupt> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub(crate) fn short(&mut self) -> Result<u16, Corrupt> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(crate) fn status(&mut self) -> Result<StatusCode, Corrupt> {
        StatusCode::from_u16(self.short()?).map_err(|_| Corrupt)
    }

    pub(crate) fn number(&mut self) -> Result<u64, Corrupt> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(Corrupt); // more than 64 bits
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return if byte == 0 && shift > 0 {
                    Err(Corrupt) // longer than needed
                } else {
                    Ok(number)
                };
            }
        }
        Err(Corrupt)
    }

    fn length(&mut self) -> Result<usize, Corrupt> {
        usize::try_from(self.number()?).map_err(|_| Corrupt)
    }

    pub(crate) fn part(&mut self) -> Result<Bytes, Corrupt> {
        let length = self.length()?;
        self.raw(length)
    }

    /// Allocates for what is there, never for what a length claims.
    pub(crate) fn headers(&mut self) -> Result<HeaderMap, Corrupt> {
        let mut headers = HeaderMap::new();
        for _ in 0..self.number()? {
            let name = self.part()?;
            let name = HeaderName::from_lowercase(&name).map_err(|_| Corrupt)?;
            if headers.contains_key(&name) {
                return Err(Corrupt);
            }
            let count = self.number()?;
            if count == 0 {
                return Err(Corrupt);
            }
            for _ in 0..count {
                let value = self.value()?;
                headers.try_append(&name, value).map_err(|_| Corrupt)?;
            }
        }
        Ok(headers)
    }

    fn value(&mut self) -> Result<HeaderValue, Corrupt> {
        let length = self.number()?;
        let sensitive = length & 1 == 1;
        let bytes = self.raw(usize::try_from(length >> 1).map_err(|_| Corrupt)?)?;
        let mut value = HeaderValue::from_maybe_shared(bytes).map_err(|_| Corrupt)?;
        value.set_sensitive(sensitive);
        Ok(value)
    }

    /// Nothing may follow.
    pub(crate) fn finish(self) -> Result<(), Corrupt> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Corrupt)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(number: u64) -> Bytes {
        let mut writer = Writer::with_capacity(10);
        writer.number(number);
        writer.finish()
    }

    #[test]
    fn numbers_have_one_form() {
        for (number, bytes) in [
            (0, &[0][..]),
            (127, &[127]),
            (128, &[0x80, 1]),
            (300, &[0xac, 2]),
            (
                u64::MAX,
                &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            ),
        ] {
            assert_eq!(written(number), bytes);
            let mut reader = Reader::new(Bytes::copy_from_slice(bytes));
            assert_eq!(reader.number(), Ok(number));
            assert_eq!(reader.finish(), Ok(()));
        }
        for wrong in [
            &[][..],
            &[0x80],
            &[0x80, 0],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2],
            &[
                0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1,
            ],
        ] {
            assert!(
                Reader::new(Bytes::copy_from_slice(wrong)).number().is_err(),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn a_claimed_length_is_not_believed() {
        let mut claim = Writer::with_capacity(32);
        claim.number(u64::MAX);
        claim.raw(b"short");
        let claim = claim.finish();
        assert_eq!(Reader::new(claim.clone()).part(), Err(Corrupt));
        assert!(Reader::new(claim.clone()).headers().is_err());
        assert!(Reader::new(claim).value().is_err());
    }

    #[test]
    fn headers_have_one_form() {
        let read = |bytes: &'static [u8]| Reader::new(Bytes::from_static(bytes)).headers();
        assert_eq!(read(b"\x01\x01a\x02\x02x\x02y").unwrap().len(), 2);
        for (wrong, what) in [
            (&b"\x02\x01a\x01\x02x\x01a\x01\x02y"[..], "a name twice"),
            (b"\x01\x01a\x00", "no value"),
            (b"\x01\x01A\x01\x02x", "upper case"),
            (b"\x01\x00\x01\x02x", "no name"),
            (b"\x01\x01a\x01\x02\n", "a character that no value has"),
            (b"\x01\x01a\x02\x02x", "fewer values than it says"),
        ] {
            assert!(read(wrong).is_err(), "{what}");
        }
    }

    proptest! {
        #[test]
        fn numbers_round_trip(number in any::<u64>(), shift in 0u32..64) {
            let number = number >> shift;
            prop_assert_eq!(Reader::new(written(number)).number(), Ok(number));
        }

        #[test]
        fn what_is_accepted_as_a_number_is_how_it_is_written(
            bytes in proptest::collection::vec(any::<u8>(), 0..12),
        ) {
            let mut reader = Reader::new(Bytes::from(bytes.clone()));
            if let Ok(number) = reader.number() {
                let written = written(number);
                prop_assert_eq!(&bytes[..written.len()], &written[..]);
            }
        }
    }
}
