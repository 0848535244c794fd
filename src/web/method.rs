//! Which methods a layer applies to.

use http::Method;

use crate::error::ConfigError;

/// Which methods a layer applies to. Default: every method but the safe ones and `CONNECT`.
///
/// `HEAD`, `OPTIONS`, `TRACE` and `CONNECT` never pass: they do no work that a lock could order,
/// and a tunnel has no end that a lock could wait for.
#[derive(Clone, Debug, Default)]
pub(crate) struct MethodFilter {
    /// Instead of the default.
    only: Option<Vec<Method>>,
    /// Beside the default or the list, whichever setter came first.
    added: Vec<Method>,
}

impl MethodFilter {
    /// These methods instead of the default; what was added stays added.
    ///
    /// # Errors
    ///
    /// On an empty list, and on a method that is never locked.
    pub(crate) fn with(
        mut self,
        methods: impl IntoIterator<Item = Method>,
    ) -> Result<Self, ConfigError> {
        let methods = checked(methods)?;
        if methods.is_empty() {
            return Err(ConfigError::new(
                "methods is empty, accepted is at least one method; leave the setter out for the default",
            ));
        }
        self.only = Some(methods);
        Ok(self)
    }

    /// These methods as well.
    ///
    /// # Errors
    ///
    /// On a method that is never locked.
    pub(crate) fn adding(
        mut self,
        methods: impl IntoIterator<Item = Method>,
    ) -> Result<Self, ConfigError> {
        self.added.extend(checked(methods)?);
        Ok(self)
    }

    /// Whether the layer applies to this method.
    pub(crate) fn matches(&self, method: &Method) -> bool {
        let listed = match &self.only {
            None => !safe(method) && method != Method::CONNECT,
            Some(only) => only.contains(method),
        };
        listed || self.added.contains(method)
    }
}

/// By name, because `Method::is_safe` knows `QUERY` only in newer versions of `http`.
fn safe(method: &Method) -> bool {
    matches!(
        method.as_str(),
        "GET" | "HEAD" | "OPTIONS" | "QUERY" | "TRACE"
    )
}

fn checked(methods: impl IntoIterator<Item = Method>) -> Result<Vec<Method>, ConfigError> {
    methods
        .into_iter()
        .map(|method| match method.as_str() {
            "CONNECT" | "HEAD" | "OPTIONS" | "TRACE" => Err(ConfigError::new(format!(
                "methods contains {method}, which is never locked; accepted are GET, POST, PUT, PATCH, DELETE and methods of your own"
            ))),
            _ => Ok(method),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Method; 9] = [
        Method::GET,
        Method::HEAD,
        Method::OPTIONS,
        Method::TRACE,
        Method::CONNECT,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
    ];

    fn matched(filter: &MethodFilter) -> Vec<Method> {
        ALL.into_iter().filter(|m| filter.matches(m)).collect()
    }

    fn own(name: &str) -> Method {
        Method::from_bytes(name.as_bytes()).unwrap()
    }

    #[test]
    fn default_is_every_method_but_the_safe_ones_and_connect() {
        let filter = MethodFilter::default();
        assert_eq!(
            matched(&filter),
            [Method::POST, Method::PUT, Method::PATCH, Method::DELETE]
        );
        assert!(filter.matches(&own("PURGE")));
        assert!(!filter.matches(&own("QUERY")));
    }

    #[test]
    fn a_list_replaces_the_default() {
        let filter = MethodFilter::default().with([Method::PUT]).unwrap();
        assert_eq!(matched(&filter), [Method::PUT]);
        let filter = filter.with([own("PURGE"), Method::GET]).unwrap();
        assert_eq!(matched(&filter), [Method::GET]);
        assert!(filter.matches(&own("PURGE")));
    }

    #[test]
    fn added_methods_stay_whatever_the_order() {
        let first = MethodFilter::default().adding([Method::GET]).unwrap();
        assert_eq!(
            matched(&first),
            [
                Method::GET,
                Method::POST,
                Method::PUT,
                Method::PATCH,
                Method::DELETE
            ]
        );
        let first = first.with([Method::POST]).unwrap();
        let last = MethodFilter::default()
            .with([Method::POST])
            .unwrap()
            .adding([Method::GET])
            .unwrap();
        assert_eq!(matched(&first), [Method::GET, Method::POST]);
        assert_eq!(matched(&last), matched(&first));
    }

    #[test]
    fn methods_that_are_never_locked_are_named() {
        for method in [
            Method::HEAD,
            Method::OPTIONS,
            Method::TRACE,
            Method::CONNECT,
        ] {
            let list = || [Method::POST, method.clone()];
            for error in [
                MethodFilter::default().with(list()).unwrap_err(),
                MethodFilter::default().adding(list()).unwrap_err(),
            ] {
                let text = error.to_string();
                assert!(text.contains(method.as_str()), "{text}");
                assert!(text.contains("accepted are GET, POST"), "{text}");
            }
        }
        assert!(MethodFilter::default().with([]).is_err());
    }
}
