//! Lock keys, and the extractors that need no router.

use std::panic::catch_unwind;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, request::Parts};
use proptest::{collection::vec, prelude::*};
use tower_lock::{
    KeyExtractor, LockKey,
    key::{
        self, BodyKeyExtractor, ExtractResult, Extraction, HeaderKey, JsonKey, KeyRejection,
        LockKeys,
    },
};

fn head() -> Parts {
    Request::new(()).into_parts().0
}

fn ready(key: &dyn KeyExtractor, mut parts: Parts) -> ExtractResult {
    match key.extract(&mut parts) {
        Extraction::Ready(result) => result,
        Extraction::Pending(_) => panic!("has nothing to wait for"),
    }
}

fn invalid(result: ExtractResult) -> String {
    match result {
        Err(KeyRejection::Invalid { what }) => what,
        other => panic!("{other:?}"),
    }
}

fn missing(result: ExtractResult) -> String {
    match result {
        Err(KeyRejection::Missing { what }) => what,
        other => panic!("{other:?}"),
    }
}

/// The message of the panic.
fn panic_of(build: impl FnOnce() + std::panic::UnwindSafe) -> String {
    *catch_unwind(build).unwrap_err().downcast().unwrap()
}

// ---- the canonical form ----

type Tuple = (String, Vec<Vec<u8>>);

/// Values made of what could be taken for the form itself, and what no backend likes.
fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => vec(prop::sample::select(&b"12.:;#ab"[..]), 0..5),
        2 => vec(any::<u8>(), 0..8),
        1 => vec(prop::sample::select(&b"\r\n\0{}/\\*? \xff%"[..]), 0..4),
        1 => (150_usize..260).prop_map(|n| vec![b'a'; n]),
        1 => Just(vec![b'x'; 8192]),
    ]
}

fn namespace() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[ab.%-]{0,3}",
        1 => any::<String>(),
        1 => "[a:;%\u{e9}-]{60,70}",
    ]
}

fn tuple() -> impl Strategy<Value = Tuple> {
    (namespace(), vec(value(), 0..4))
}

fn key_of((namespace, values): &Tuple) -> LockKey {
    LockKey::from_values(namespace, values)
}

/// Neither is the beginning of the other, so neither is equal.
fn apart(a: &LockKey, b: &LockKey) -> bool {
    a != b && !a.as_str().starts_with(b.as_str()) && !b.as_str().starts_with(a.as_str())
}

/// Random tuples seldom come close to each other, so these do: all of up to three values that
/// look like the form itself.
#[test]
fn tuples_that_look_alike_have_keys_apart() {
    let values = [
        "", "0", "1", "11", ".", "1.", "1.1", "0.", ";", ":", "#", "n:",
    ];
    let mut tuples: Vec<Vec<&str>> = vec![vec![]];
    for grown in 0..3 {
        let longest: Vec<_> = tuples
            .iter()
            .filter(|t| t.len() == grown)
            .cloned()
            .collect();
        for tuple in longest {
            tuples.extend(values.map(|value| [tuple.as_slice(), &[value]].concat()));
        }
    }
    assert_eq!(tuples.len(), 1 + 12 + 144 + 1728);
    let mut keys: Vec<LockKey> = Vec::new();
    for namespace in ["n", "n1", "n.1", "n:1.1;", "n:", "%n"] {
        keys.extend(
            tuples
                .iter()
                .map(|values| LockKey::from_values(namespace, values)),
        );
    }
    // In order, a beginning of any key is also a beginning of the next one.
    keys.sort();
    for pair in keys.windows(2) {
        assert!(
            apart(&pair[0], &pair[1]),
            "{} {}",
            pair[0].as_str(),
            pair[1].as_str()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn different_tuples_have_keys_apart(a in tuple(), b in tuple()) {
        let (one, other) = (key_of(&a), key_of(&b));
        if a == b {
            prop_assert_eq!(one, other);
        } else {
            prop_assert!(apart(&one, &other), "{:?} {:?}", one.as_str(), other.as_str());
        }
    }

    #[test]
    fn where_one_value_ends_matters(bytes in value(), more in value(), at in any::<prop::sample::Index>()) {
        let joined = [bytes.clone(), more.clone()].concat();
        let (left, right) = joined.split_at(at.index(joined.len() + 1));
        let whole = LockKey::from_values("n", [&joined]);
        let cut = LockKey::from_values("n", [left, right]);
        prop_assert!(apart(&whole, &cut));
        if left.len() != bytes.len() {
            prop_assert!(apart(&cut, &LockKey::from_values("n", [&bytes, &more])));
        }
    }

    #[test]
    fn the_form_is_short_and_plain(tuple in tuple()) {
        let key = key_of(&tuple);
        prop_assert!(key.as_str().len() <= 64 + 1 + 200 + 1, "{}", key.as_str().len());
        let plain = |b: u8| b.is_ascii_graphic() && !b"/\\{}*?".contains(&b);
        prop_assert!(key.as_str().bytes().all(plain), "{}", key.as_str());
        prop_assert_eq!(key.as_str().split_once(':').map(|(namespace, _)| namespace), Some(key.namespace()));
        prop_assert!(!key.namespace().is_empty());
    }

    #[test]
    fn a_displayed_value_is_its_text(text in any::<String>()) {
        prop_assert_eq!(LockKey::new("n", &text), LockKey::from_values("n", [text]));
    }
}

#[test]
fn a_long_key_is_hashed_at_the_limit_only() {
    // `196.` and 196 characters are 200 bytes.
    let at = LockKey::new("n", "a".repeat(196));
    let over = LockKey::new("n", "a".repeat(197));
    assert!(at.as_str().starts_with("n:196.aaa"), "{}", at.as_str());
    assert!(over.as_str().starts_with("n:#"), "{}", over.as_str());
    assert_eq!(over.as_str().len(), "n:#;".len() + 64);
    // It does not matter by which value the limit is passed.
    let halves = LockKey::from_values("n", ["a".repeat(99), "a".repeat(98)]);
    assert!(halves.as_str().starts_with("n:#"), "{}", halves.as_str());
    assert_ne!(halves, over);
}

#[test]
fn debug_shows_no_value() {
    let key = LockKey::new("order", "secret-7");
    assert!(!format!("{key:?} {:?}", LockKeys::One(key.clone())).contains("secret"));
    let rejection = KeyRejection::from(
        http::Response::builder()
            .status(401)
            .header("set-cookie", "secret")
            .body(String::from("secret"))
            .unwrap(),
    );
    assert_eq!(format!("{rejection:?}"), "Response(401)");
}

// ---- closures ----

#[test]
fn several_keys_are_sorted_and_each_is_there_once() {
    let key = |n: u64| LockKey::new("account", n);
    let keys = ready(
        &key::from_fn(move |_: &Parts| vec![key(3), key(1), key(3), key(2)]),
        head(),
    );
    let keys = keys.unwrap();
    assert_eq!(keys.as_slice(), [key(1), key(2), key(3)]);

    let one = ready(&key::from_fn(move |_: &Parts| [key(1), key(1)]), head()).unwrap();
    assert_eq!(one, LockKeys::One(key(1)));
    let none = ready(&key::from_fn(|_: &Parts| Vec::new()), head()).unwrap();
    assert_eq!(none, LockKeys::Skip);
}

#[test]
fn closures_return_what_is_handy() {
    let key = LockKey::new("n", 1);
    let one = LockKeys::One(key.clone());

    let of_head = key::from_fn(|parts: &Parts| LockKey::new("n", parts.headers.len() + 1));
    assert_eq!(ready(&of_head, head()).unwrap(), one);
    let some = key::from_fn({
        let key = key.clone();
        move |_: &Parts| Some([key.clone()])
    });
    assert_eq!(ready(&some, head()).unwrap(), one);
    let none = key::from_fn(|_: &Parts| None::<LockKey>);
    assert_eq!(ready(&none, head()).unwrap(), LockKeys::Skip);
    let ok = key::from_fn(move |_: &Parts| Ok::<_, KeyRejection>(Some(key.clone())));
    assert_eq!(ready(&ok, head()).unwrap(), one);

    let refused = key::from_fn(|_: &Parts| Err::<LockKey, _>(StatusCode::FORBIDDEN));
    match ready(&refused, head()) {
        Err(KeyRejection::Response(response)) => assert_eq!(response.status(), 403),
        other => panic!("{other:?}"),
    }
    // Through the pointers that a user may keep an extractor in.
    let boxed: Box<dyn KeyExtractor> = Box::new(refused);
    assert!(ready(&std::sync::Arc::new(boxed), head()).is_err());
}

// ---- headers ----

fn with_headers<V: AsRef<[u8]>>(values: impl IntoIterator<Item = V>) -> Parts {
    let mut parts = head();
    for value in values {
        let value = HeaderValue::from_bytes(value.as_ref()).unwrap();
        parts.headers.append("x-order-id", value);
    }
    parts
}

#[test]
fn a_header_is_a_key() {
    let key = HeaderKey::new("order", "X-Order-Id");
    let keys = ready(&key, with_headers(["A-7"])).unwrap();
    assert_eq!(keys, LockKeys::One(LockKey::new("order", "A-7")));
    let longest = "z".repeat(255);
    let keys = ready(&key, with_headers([&longest])).unwrap();
    assert_eq!(keys, LockKeys::One(LockKey::new("order", longest)));
}

#[test]
fn a_missing_header_is_refused_unless_optional() {
    let key = HeaderKey::new("order", http::header::IF_MATCH);
    assert_eq!(missing(ready(&key, head())), "header `if-match`");
    assert_eq!(ready(&key.optional(), head()).unwrap(), LockKeys::Skip);
}

#[test]
fn a_wrong_header_is_refused_and_never_quoted() {
    let wrong: [&[&[u8]]; 9] = [
        &[b"q7", b"q7"],
        &[b"q7", b"q8"],
        &[b""],
        &[b"", b"q7"],
        &[b"q\xff"],
        &[b"q\xc3\xa9"],
        &[b"q 7"],
        &[b"q\t7"],
        &[&[b'q'; 256]],
    ];
    for optional in [false, true] {
        let mut key = HeaderKey::new("order", "x-order-id");
        if optional {
            key = key.optional();
        }
        for values in wrong {
            let what = invalid(ready(&key, with_headers(values)));
            assert!(
                what.contains("`x-order-id`") && what.contains("255"),
                "{what}"
            );
            assert!(!what.contains('q'), "{what}");
        }
    }
}

// ---- bodies ----

fn json_head() -> Parts {
    let mut parts = head();
    let json = HeaderValue::from_static("application/json");
    parts.headers.insert("content-type", json);
    parts
}

fn of_json(key: &JsonKey, body: &str) -> ExtractResult {
    key.extract(&json_head(), &Bytes::copy_from_slice(body.as_bytes()))
}

#[test]
fn a_json_field_is_a_key_by_its_text() {
    let key = JsonKey::new("order", "/order/id");
    assert_eq!(key.max_body(), 64 * 1024);
    assert_eq!(key.clone().with_max_body(9).max_body(), 9);
    for (body, text) in [
        (r#"{"order":{"id":"7"}}"#, "7"),
        (r#" {"x":[1.5], "order":{"id":7}}"#, "7"),
        (r#"{"order":{"id":-7}}"#, "-7"),
        (
            r#"{"order":{"id":18446744073709551615}}"#,
            "18446744073709551615",
        ),
        (r#"{"order":{"id":true}}"#, "true"),
        (r#"{"order":{"id":"\u00e9 \""}}"#, "\u{e9} \""),
    ] {
        let keys = of_json(&key, body).unwrap();
        assert_eq!(keys, LockKeys::One(LockKey::new("order", text)), "{body}");
    }
}

#[test]
fn json_pointers_reach_arrays_and_escaped_names() {
    let one = LockKeys::One(LockKey::new("n", 1));
    for (pointer, body) in [
        ("/items/1/id", r#"{"items":[{"id":0},{"id":1}]}"#),
        ("/a~1b/c~0d", r#"{"a/b":{"c~d":1}}"#),
        ("/", r#"{"":1}"#),
        ("", "1"),
    ] {
        assert_eq!(
            of_json(&JsonKey::new("n", pointer), body).unwrap(),
            one,
            "{pointer}"
        );
    }
}

#[test]
fn an_absent_json_field_is_refused_unless_optional() {
    let key = JsonKey::new("order", "/order/id");
    for body in [r#"{"order":{}}"#, r#"{"order":{"id":null}}"#, "[]", "7", ""] {
        assert_eq!(
            missing(of_json(&key, body)),
            "JSON field `/order/id`",
            "{body}"
        );
        let optional = key.clone().optional();
        assert_eq!(of_json(&optional, body).unwrap(), LockKeys::Skip, "{body}");
    }
    // Nothing at all needs no content type.
    let empty = key.optional().extract(&head(), &Bytes::new());
    assert_eq!(empty.unwrap(), LockKeys::Skip);
}

#[test]
fn a_wrong_json_body_is_refused_and_never_quoted() {
    let key = JsonKey::new("order", "/id").optional();
    let deep = "[".repeat(10_000);
    for body in [
        r#"{"id":"#,
        r#"{"id":7} q"#,
        "q",
        &deep,
        r#"{"id":""}"#,
        r#"{"id":1.5}"#,
        r#"{"id":1e2}"#,
        r#"{"id":18446744073709551616}"#,
        r#"{"id":["q"]}"#,
        r#"{"id":{"q":1}}"#,
    ] {
        let what = invalid(of_json(&key, body));
        assert!(!what.contains('q'), "{what}");
    }
    let not_text = key.extract(&json_head(), &Bytes::from_static(b"{\"id\":\"\xff\"}"));
    invalid(not_text);
}

#[test]
fn a_json_key_needs_a_json_content_type_even_if_optional() {
    let key = JsonKey::new("order", "/id").optional();
    let with_type = |content_type: &'static str| {
        let mut parts = head();
        let value = HeaderValue::from_static(content_type);
        parts.headers.insert("content-type", value);
        key.extract(&parts, &Bytes::from_static(br#"{"id":7}"#))
    };
    for right in [
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/vnd.order+json",
    ] {
        assert!(with_type(right).is_ok(), "{right}");
    }
    for wrong in ["text/plain", "text/json", "application/jsonx", "json", ""] {
        let what = invalid(with_type(wrong));
        assert!(what.contains("application/json"), "{what}");
    }
    let mut twice = json_head();
    let text = HeaderValue::from_static("text/plain");
    twice.headers.append("content-type", text);
    invalid(key.extract(&twice, &Bytes::from_static(b"{}")));
    invalid(key.extract(&head(), &Bytes::from_static(b"{}")));
}

#[test]
fn a_closure_sees_head_and_body() {
    let key = key::body_from_fn(10, |parts: &Parts, body: &Bytes| {
        LockKey::from_values("n", [parts.method.as_str().as_bytes(), body])
    });
    assert_eq!(key.max_body(), 10);
    let keys = key.extract(&head(), &Bytes::from_static(b"\0b")).unwrap();
    let expected = LockKey::from_values("n", [b"GET".as_slice(), b"\0b"]);
    assert_eq!(keys, LockKeys::One(expected));
}

// ---- what panics when it is built ----

#[test]
fn wrong_names_panic_when_built_and_say_what_is_accepted() {
    for namespace in ["", "a b", "a:b", "\u{e9}", &"n".repeat(65)] {
        let namespace = namespace.to_owned();
        let message = panic_of(move || drop(HeaderKey::new(&namespace, "x")));
        assert!(
            message.contains("namespace") && message.contains("A-Z"),
            "{message}"
        );
    }
    drop(HeaderKey::new(&"n".repeat(64), "x"));
    drop(JsonKey::new("Az_0.9-", ""));
    assert!(panic_of(|| drop(JsonKey::new("a b", "/x"))).contains("namespace"));

    for header in ["", "x order", "x:", "\u{e9}"] {
        let message = panic_of(move || drop(HeaderKey::new("n", header)));
        assert!(message.contains(&format!("{header:?}")), "{message}");
    }
    for pointer in ["id", "id/", "/a~", "/a~2", "~0"] {
        let message = panic_of(move || drop(JsonKey::new("n", pointer)));
        assert!(message.contains(&format!("{pointer:?}")), "{message}");
    }
}
