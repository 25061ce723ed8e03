//! The plain variables `RATE_LIMIT_…`, enough alone: a few numbers that stand for up to three
//! policies.

use super::diagnostic::{Diagnostic, Place};
use super::env::{Variables, truth};
use super::kind::either;
use super::nearest::nearest;
use crate::attribute::Attribute;
use crate::policies::Policies;
use crate::policy::{Missing, Policy};
use crate::validate::Severity;
use ratekeeper::{Algorithm, Limit};
use std::ops::RangeInclusive;

const PREFIX: &str = "RATE_LIMIT_";
const ENABLED: &str = "RATE_LIMIT_ENABLED";
const ALGORITHM: &str = "RATE_LIMIT_ALGORITHM";
const DEFAULT: &str = "RATE_LIMIT_DEFAULT";
const WINDOW: &str = "RATE_LIMIT_WINDOW";
const PER_IP: &str = "RATE_LIMIT_PER_IP";
const PER_USER: &str = "RATE_LIMIT_PER_USER";
const BURST: &str = "RATE_LIMIT_BURST";
const ALL: [&str; 7] = [ENABLED, ALGORITHM, DEFAULT, WINDOW, PER_IP, PER_USER, BURST];

/// Seconds of a window that nobody named.
const HOUR: u64 = 3600;
/// 64 bits of nanoseconds.
const LONGEST: u64 = u64::MAX / 1_000_000_000;

/// What the variables say.
pub(crate) struct Plain {
    pub(crate) enabled: Option<bool>,
    /// Their policies, if there are any, and the variable that each one comes from.
    pub(crate) policies: Option<(Policies, Vec<&'static str>)>,
}

/// Those that are set, of which one is told if the file has policies of its own.
pub(crate) fn ignored(variables: &Variables) -> Option<Diagnostic> {
    let set = ALL
        .into_iter()
        .filter(|name| variables.contains_key(*name))
        .collect::<Vec<_>>();
    let (first, others) = set.split_first()?;
    let them = if others.is_empty() {
        "it is"
    } else {
        "they are"
    };
    let mut message = format!(
        "the file has policies, so {them} ignored: {}; unset what is not meant",
        set.join(", ")
    );
    // Somebody may be in a hurry to switch limits off.
    if set.contains(&ENABLED) {
        message.push_str(", and set RATEKEEPER_ENABLED to switch the limits on or off");
    }
    Some(Diagnostic::warning(
        Place::Variable((*first).to_owned()),
        message,
    ))
}

/// The policies that the variables stand for.
pub(crate) fn read(variables: &Variables, found: &mut Vec<Diagnostic>) -> Plain {
    let mut reading = Reading { variables, found };
    reading.doubt_names();
    let enabled = reading.get(ENABLED, "true or false", truth);
    let algorithm = reading.algorithm().unwrap_or_default();
    let window = reading
        .number(WINDOW, "a whole number of seconds", 1..=LONGEST)
        .unwrap_or(HOUR);
    let burst = reading
        .number(BURST, "a whole number", 1..=u64::MAX)
        .and_then(|burst| reading.burst_of(algorithm, burst));
    let mut policies = Policies::new();
    let mut from = Vec::new();
    for name in [PER_USER, PER_IP, DEFAULT] {
        let Some(count) = reading.number(name, "a whole number", 0..=u64::MAX) else {
            continue;
        };
        let Some(limit) = reading.limit(name, count, window, burst, algorithm) else {
            continue;
        };
        policies = policies.policy(match name {
            PER_USER => Policy::new("per_user")
                .key(Attribute::User)
                .missing(Missing::Skip)
                .limit(limit)
                .stop(),
            PER_IP => Policy::new("per_ip")
                .key(Attribute::Ip)
                .missing(Missing::Skip)
                .limit(limit)
                .stop(),
            _ => Policy::new("default").limit(limit),
        });
        from.push(name);
    }
    // The policies behind it count a request that it skips; nothing is behind the last one.
    if let Some(last) = policies.policies.last_mut() {
        last.missing = Missing::default();
    }
    let is_set = |name: &&str| variables.contains_key(*name);
    match from[..] {
        [] if ![PER_USER, PER_IP, DEFAULT].iter().any(is_set) => reading.doubt_numbers(),
        _ => {}
    }
    reading.doubt_burst(&policies);
    Plain {
        enabled,
        policies: (!from.is_empty()).then_some((policies, from)),
    }
}

struct Reading<'a> {
    variables: &'a Variables,
    found: &'a mut Vec<Diagnostic>,
}

impl Reading<'_> {
    fn warn(&mut self, name: &str, message: String) {
        self.found.push(Diagnostic::warning(
            Place::Variable(name.to_owned()),
            message,
        ));
    }

    fn get<T>(
        &mut self,
        name: &str,
        wants: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.variables.get(name)?.trim();
        let value = read(text);
        if value.is_none() {
            let message = format!("must be {wants}, not \"{}\"", text.escape_debug());
            self.found
                .push(Diagnostic::error(Place::Variable(name.to_owned()), message));
        }
        value
    }

    fn algorithm(&mut self) -> Option<Algorithm> {
        let names = || Algorithm::ALL.iter().map(|algorithm| algorithm.name());
        let text = self.variables.get(ALGORITHM)?.trim();
        let found = self.get(
            ALGORITHM,
            &either(names().map(ToOwned::to_owned)),
            Algorithm::from_name,
        );
        if let (None, Some(near), Some(told)) =
            (found, nearest(text, names()), self.found.last_mut())
        {
            told.message.push_str(&format!("; did you mean {near}?"));
        }
        found
    }

    fn number(&mut self, name: &str, what: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let wants = match (*range.start(), *range.end()) {
            (min, u64::MAX) => format!("{what} of at least {min}"),
            (min, max) => format!("{what} from {min} to {max}"),
        };
        self.get(name, &wants, |text| {
            text.parse().ok().filter(|number| range.contains(number))
        })
    }

    /// Only some algorithms have a burst.
    fn burst_of(&mut self, algorithm: Algorithm, burst: u64) -> Option<u64> {
        let has_burst = matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
        if !has_burst {
            self.warn(
                BURST,
                format!("only token_bucket and leaky_bucket have a burst, so it is ignored with {algorithm}; unset it"),
            );
        }
        has_burst.then_some(burst)
    }

    /// The limit, by its text: the rules of what goes together are the same.
    fn limit(
        &mut self,
        name: &str,
        count: u64,
        window: u64,
        burst: Option<u64>,
        algorithm: Algorithm,
    ) -> Option<Limit> {
        let burst = burst
            .map(|burst| format!("burst {burst} "))
            .unwrap_or_default();
        let limit = format!("{count}/{window}s {burst}{algorithm}").parse::<Limit>();
        limit
            .map_err(|error| {
                self.found.push(Diagnostic::error(
                    Place::Variable(name.to_owned()),
                    error.to_string(),
                ));
            })
            .ok()
    }

    /// A burst that is hardly meant.
    fn doubt_burst(&mut self, policies: &Policies) {
        if !self.variables.contains_key(BURST) {
            return;
        }
        let doubts = policies
            .problems()
            .into_iter()
            .find(|problem| problem.key == "limit");
        if let Some(problem) = doubts.filter(|problem| problem.severity == Severity::Warning) {
            self.warn(BURST, problem.message);
        }
    }

    /// Something is said of limits, and no number.
    fn doubt_numbers(&mut self) {
        if let Some(name) = [ALGORITHM, WINDOW, BURST]
            .into_iter()
            .find(|name| self.variables.contains_key(*name))
        {
            self.warn(
                name,
                format!("says nothing without a number, so the built-in policy applies; set {DEFAULT}, {PER_IP} or {PER_USER}"),
            );
        }
    }

    /// Others have such variables too, so only slips are told.
    fn doubt_names(&mut self) {
        let others = self
            .variables
            .keys()
            .filter(|name| name.starts_with(PREFIX) && !ALL.contains(&name.as_str()));
        for name in others {
            let unset = ALL
                .into_iter()
                .filter(|known| !self.variables.contains_key(*known));
            if let Some(near) = nearest(
                &name[PREFIX.len()..],
                unset.map(|known| &known[PREFIX.len()..]),
            ) {
                let message = format!(
                    "no such variable is known, so it is ignored; did you mean {PREFIX}{near}?"
                );
                self.found
                    .push(Diagnostic::warning(Place::Variable(name.clone()), message));
            }
        }
    }
}
