//! One form for content types that mean the same.

use http::{HeaderMap, header::CONTENT_TYPE};

/// The content type in one form: names in lower case, parameters sorted by name and without
/// quotes, `charset` in lower case. UTF-8 is what JSON is, said or not, so there it is left out.
/// What is not well-formed, or sent twice, stays as it is. `None` if there is none.
pub(super) fn canonical(headers: &HeaderMap) -> Option<Vec<u8>> {
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let first = values.next()?;
    let mut raw = first.as_bytes().trim_ascii().to_vec();
    let mut repeated = false;
    for value in values {
        repeated = true;
        raw.push(b'\n'); // in no header's value
        raw.extend_from_slice(value.as_bytes().trim_ascii());
    }
    if repeated {
        return Some(raw);
    }
    let written = std::str::from_utf8(&raw).ok().and_then(parse);
    Some(written.map_or(raw, String::into_bytes))
}

fn parse(value: &str) -> Option<String> {
    let (essence, mut rest) = value.split_once(';').unwrap_or((value, ""));
    let essence = essence.trim().to_ascii_lowercase();
    let (kind, subtype) = essence.split_once('/')?;
    if !is_token(kind) || !is_token(subtype) {
        return None;
    }
    let json = subtype == "json" || subtype.ends_with("+json");
    let mut parameters = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', '\t', ';']);
        if rest.is_empty() {
            break;
        }
        let (name, after) = rest.split_once('=')?;
        let name = name.to_ascii_lowercase();
        if !is_token(&name) {
            return None;
        }
        let (mut value, after) = parameter(after)?;
        rest = after;
        if name == "charset" {
            value.make_ascii_lowercase();
            if json && value == "utf-8" {
                continue;
            }
        }
        parameters.push((name, value));
    }
    // Stable: of two of one name the first counts for most readers.
    parameters.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut written = essence;
    for (name, value) in parameters {
        // With its length, so that no value passes for two.
        written.push_str(&format!(";{name}={}:{value}", value.len()));
    }
    Some(written)
}

/// The value of a parameter, without quotes, and what follows it.
fn parameter(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(';').unwrap_or(text.len());
        let value = text[..end].trim_end();
        return is_token(value).then(|| (value.to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => {
                let rest = quoted[at + 1..].trim_start();
                return (rest.is_empty() || rest.starts_with(';')).then_some((value, rest));
            }
            '\\' => value.push(chars.next()?.1),
            other => value.push(other),
        }
    }
    None
}

fn is_token(text: &str) -> bool {
    let stands = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !text.is_empty() && text.bytes().all(stands)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn of(value: &[u8]) -> Vec<u8> {
        let value = HeaderValue::from_bytes(value).unwrap();
        canonical(&HeaderMap::from_iter([(CONTENT_TYPE, value)])).unwrap()
    }

    #[test]
    fn what_means_the_same_is_the_same() {
        let table: [&[&str]; 5] = [
            &[
                "application/json",
                "Application/JSON",
                "application/json;",
                "application/json; charset=utf-8",
                "application/json;charset=\"UTF-8\"",
            ],
            &[
                "application/merge-patch+json",
                "application/merge-patch+json; charset=UTF-8",
            ],
            &["text/plain; charset=UTF-8", "text/plain;charset=utf-8 "],
            &["text/plain; a=1; B=2", "text/plain;b=\"2\" ; a=1"],
            &[
                "multipart/form-data; boundary=Ab",
                "multipart/form-data; boundary=\"Ab\"",
            ],
        ];
        let forms = table.map(|row| {
            let form = of(row[0].as_bytes());
            for value in row {
                assert_eq!(of(value.as_bytes()), form, "{value}");
            }
            form
        });
        for (i, form) in forms.iter().enumerate() {
            assert!(!forms[i + 1..].contains(form));
        }
    }

    #[test]
    fn what_differs_stays_different() {
        let different = [
            "text/plain",
            "text/plain; charset=utf-8",
            "text/plain; charset=latin1",
            "multipart/form-data; boundary=ab",
            "multipart/form-data; boundary=AB",
            "text/plain; a=1; b=2",
            "text/plain; a=\"1;b=1:2\"",
            "text/plain; a=1; a=2",
            "text/plain; a=2; a=1",
            "text",
            "text/plain; a",
            "text/plain; a=\"1",
            "text/plain; a=\"1\"2",
            "",
        ];
        for (i, one) in different.iter().enumerate() {
            for other in &different[i + 1..] {
                assert_ne!(of(one.as_bytes()), of(other.as_bytes()), "{one} {other}");
            }
        }
        assert_eq!(canonical(&HeaderMap::new()), None);
        let mut twice = HeaderMap::new();
        twice.append(CONTENT_TYPE, HeaderValue::from_static("a/b"));
        twice.append(CONTENT_TYPE, HeaderValue::from_static("c/d"));
        assert_eq!(canonical(&twice).unwrap(), b"a/b\nc/d");
    }

    proptest! {
        #[test]
        fn no_value_panics(value in proptest::collection::vec(32u8..=255, 0..60)) {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                let _ = canonical(&HeaderMap::from_iter([(CONTENT_TYPE, value)]));
            }
        }

        #[test]
        fn quotes_and_case_of_names_do_not_count(
            name in "[a-z]{1,5}", value in "[a-z0-9]{1,8}",
        ) {
            let plain = of(format!("text/plain; {name}={value}").as_bytes());
            let other = format!("TEXT/plain;{}=\"{value}\"", name.to_uppercase());
            prop_assert_eq!(of(other.as_bytes()), plain);
        }
    }
}
