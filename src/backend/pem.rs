//! Certificates of a user's own.

/// Whether there is something of this kind in it, such as a `CERTIFICATE`: the client libraries
/// would take what holds nothing of the kind for an empty list, and trust nobody.
pub(in crate::backend) fn holds(pem: &[u8], what: &str) -> bool {
    let text = std::str::from_utf8(pem).unwrap_or_default();
    text.contains("-----BEGIN ") && text.contains(&format!("{what}-----"))
}
