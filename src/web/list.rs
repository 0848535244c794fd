//! Lists in header values.

use http::{HeaderMap, HeaderName};

/// The parts between separators that stand outside of quotes.
pub(crate) fn split(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ => return !quoted && *byte == separator,
        }
        false
    })
}

/// The members of a list of names, over all lines of a header.
pub(crate) fn names(headers: &HeaderMap, header: HeaderName) -> impl Iterator<Item = &[u8]> {
    let lines = headers.get_all(header).into_iter();
    lines
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
}
