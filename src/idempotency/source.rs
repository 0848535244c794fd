//! What may be given where keys are derived: an extractor, or a closure.

use http::request::Parts;

use crate::key::{FromFn, IntoLockKeys, KeyExtractor, from_fn};

/// A [`KeyExtractor`], or a closure over the head of a request that [`from_fn`] makes one of.
///
/// The parameter tells the two apart and is never named.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not derive a key from a request's head",
    label = "neither a `KeyExtractor` nor a closure that makes one",
    note = "use `|parts: &Parts| LockKey::new(..)`, with the type of `parts` written out, or an extractor such as `key::from_extractors(|user: User| ..)`",
    note = "a closure returns a `LockKey`, an `Option` of it, or a `Result` whose error is `Into<KeyRejection>`"
)]
pub trait IntoKeyExtractor<M> {
    /// The extractor that it becomes.
    type Extractor: KeyExtractor;

    /// The extractor.
    fn into_key_extractor(self) -> Self::Extractor;
}

/// Of an extractor; see [`IntoKeyExtractor`].
#[derive(Debug)]
pub struct AsExtractor(());

/// Of a closure with this output; see [`IntoKeyExtractor`].
#[derive(Debug)]
pub struct AsFn<R>(std::marker::PhantomData<fn() -> R>);

impl<T: KeyExtractor> IntoKeyExtractor<AsExtractor> for T {
    type Extractor = T;

    fn into_key_extractor(self) -> T {
        self
    }
}

impl<F, R> IntoKeyExtractor<AsFn<R>> for F
where
    F: Fn(&Parts) -> R + Send + Sync + 'static,
    R: IntoLockKeys,
{
    type Extractor = FromFn<F>;

    fn into_key_extractor(self) -> FromFn<F> {
        from_fn(self)
    }
}
