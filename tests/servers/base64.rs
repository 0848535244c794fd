//! Base64, as the JSON form of etcd's interface has all bytes.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(super) fn base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, n| {
            bits << 8 | u32::from(*three.get(n).unwrap_or(&0))
        });
        for n in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * n)) as usize & 63];
            text.push(if n <= three.len() { digit as char } else { '=' });
        }
    }
    text
}

pub(super) fn unbase64(text: &str) -> String {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for digit in text.bytes().filter(|&digit| digit != b'=') {
        let value = DIGITS.iter().position(|&d| d == digit).expect("a digit");
        bits = bits << 6 | value as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    String::from_utf8(bytes).expect("text")
}
