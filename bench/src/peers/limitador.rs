//! limitador's library in memory: limits with conditions, all of a namespace evaluated for every
//! request.

use limitador::RateLimiter;
use limitador::limit::{Context, Limit};
use std::collections::HashMap;

/// As many limits as our engine has policies, of which the same three apply.
pub(crate) struct Limitador {
    limiter: RateLimiter,
    request: Context<'static>,
}

const NAMESPACE: &str = "bench";

impl Limitador {
    pub(crate) fn new(policies: usize, path: &str) -> Self {
        let limiter = RateLimiter::new(10_000);
        let add = |conditions: &[String], variable: Option<&str>| {
            let conditions = conditions
                .iter()
                .map(|text| text.as_str().try_into().expect("a condition"))
                .collect::<Vec<_>>();
            let variables = variable
                .iter()
                .map(|text| (*text).try_into().expect("a variable"))
                .collect::<Vec<_>>();
            limiter.add_limit(Limit::new(
                NAMESPACE,
                1_000_000_000,
                1,
                conditions,
                variables,
            ));
        };
        add(&[], Some("user"));
        add(&["true".to_owned()], None);
        for number in 2..policies {
            add(
                &[format!("path.startsWith('/service{number}/items/')")],
                Some("ip"),
            );
        }
        let request = [
            ("ip", "203.0.113.7"),
            ("user", "user-42"),
            ("method", "GET"),
            ("path", path),
        ];
        let request: HashMap<String, String> = request
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        Self {
            limiter,
            request: request.into(),
        }
    }

    /// Charges a request; returns whether it was allowed. The request is prepared before, which a
    /// user cannot do.
    pub(crate) fn check(&self) -> bool {
        let namespace = NAMESPACE.into();
        self.limiter
            .check_rate_limited_and_update(&namespace, &self.request, 1)
            .is_ok_and(|result| !result.limited)
    }
}
