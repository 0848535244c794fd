//! Reading what scripts answer.

use redis::Value;

use super::{connection::text, trouble::Trouble};

pub(in crate::backend) fn list(value: &Value) -> Result<&[Value], Trouble> {
    match value {
        Value::Array(items) => Ok(items),
        _ => Err(Trouble::strange()),
    }
}

/// Integers, and numbers in text.
pub(in crate::backend) fn int(value: &Value) -> Result<i64, Trouble> {
    match value {
        Value::Int(number) => Ok(*number),
        other => text(other)
            .and_then(|text| text.parse().ok())
            .ok_or_else(Trouble::strange),
    }
}

pub(in crate::backend) fn ints(value: &Value) -> Result<Vec<i64>, Trouble> {
    list(value)?.iter().map(int).collect()
}

pub(in crate::backend) fn string(value: &Value) -> Result<&str, Trouble> {
    text(value).ok_or_else(Trouble::strange)
}
