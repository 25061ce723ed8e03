//! The simple variables `RATE_LIMIT_…`: a few numbers that define up to three policies, without a
//! file.

use super::diagnostic::{Diagnostic, Location};
use super::env::{Variables, parse_bool};
use super::file::{Rules, Switches};
use super::key_type::join_or;
use super::provenance::Provenance;
use super::suggest::did_you_mean;
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

/// The default window, in seconds.
const DEFAULT_WINDOW_SECS: u64 = 3600;
/// The longest window, in seconds: 64 bits of nanoseconds.
const MAX_WINDOW_SECS: u64 = u64::MAX / 1_000_000_000;

/// The configuration that the variables define.
pub(crate) struct SimpleEnv {
    enabled: Option<bool>,
    /// The policies, if there are any, and the variable of each.
    policies: Option<(Policies, Vec<&'static str>)>,
}

impl SimpleEnv {
    /// Applies the variables to a file without policies.
    pub(crate) fn apply(
        self,
        (switches, rules): (&mut Switches, &mut Rules),
        provenance: &mut Provenance,
    ) {
        let (own, from) = self
            .policies
            .unwrap_or_else(|| (Policies::built_in(), Vec::new()));
        for (index, name) in from.into_iter().enumerate() {
            let path = format!("policy.{index}.limit");
            provenance.add(&path, Location::Variable(name.to_owned()));
        }
        rules.policy = own.policies;
        if let Some(enabled) = self.enabled.filter(|_| !provenance.is_variable("enabled")) {
            switches.enabled = enabled;
            provenance.add("enabled", Location::Variable(ENABLED.to_owned()));
        }
    }
}

/// A warning that the variables are ignored, because the file has policies.
pub(crate) fn ignored_warning(variables: &Variables) -> Option<Diagnostic> {
    let set = ALL
        .into_iter()
        .filter(|name| variables.contains_key(*name))
        .collect::<Vec<_>>();
    let (first, others) = set.split_first()?;
    let verb = if others.is_empty() { "is" } else { "are" };
    let mut message = format!(
        "{} {verb} ignored, because the file has policies; unset what you do not need",
        set.join(", ")
    );
    // Someone may urgently need to switch the limits off.
    if set.contains(&ENABLED) {
        message.push_str(", and use RATEKEEPER_ENABLED to switch the limits on or off");
    }
    Some(Diagnostic::warning(
        Location::Variable((*first).to_owned()),
        message,
    ))
}

/// Reads the variables into policies.
pub(crate) fn read(variables: &Variables, diagnostics: &mut Vec<Diagnostic>) -> SimpleEnv {
    let mut reader = VariableReader {
        variables,
        diagnostics,
    };
    reader.warn_of_typos();
    let enabled = reader.get(ENABLED, "true or false", parse_bool);
    let algorithm = reader.algorithm().unwrap_or_default();
    let window = reader
        .number(WINDOW, "a whole number of seconds", 1..=MAX_WINDOW_SECS)
        .unwrap_or(DEFAULT_WINDOW_SECS);
    let burst = reader
        .number(BURST, "a whole number", 1..=u64::MAX)
        .and_then(|burst| reader.checked_burst(algorithm, burst));
    let mut policies = Policies::new();
    let mut from = Vec::new();
    for name in [PER_USER, PER_IP, DEFAULT] {
        let Some(count) = reader.number(name, "a whole number", 0..=u64::MAX) else {
            continue;
        };
        let Some(limit) = reader.limit(name, count, window, burst, algorithm) else {
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
    // A skipped request is counted by a later policy; after the last one there is none.
    if let Some(last) = policies.policies.last_mut() {
        last.missing = Missing::default();
    }
    let is_set = |name: &&str| variables.contains_key(*name);
    if ![PER_USER, PER_IP, DEFAULT].iter().any(is_set) {
        reader.warn_of_missing_limits();
    }
    reader.warn_of_small_burst(&policies);
    SimpleEnv {
        enabled,
        policies: (!from.is_empty()).then_some((policies, from)),
    }
}

/// Reads values from the variables, and collects the diagnostics.
struct VariableReader<'a> {
    variables: &'a Variables,
    diagnostics: &'a mut Vec<Diagnostic>,
}

impl VariableReader<'_> {
    fn warn(&mut self, name: &str, message: String) {
        self.diagnostics.push(Diagnostic::warning(
            Location::Variable(name.to_owned()),
            message,
        ));
    }

    fn get<T>(
        &mut self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.variables.get(name)?.trim();
        let value = read(text);
        if value.is_none() {
            let message = format!("must be {expected}, not \"{}\"", text.escape_debug());
            self.diagnostics.push(Diagnostic::error(
                Location::Variable(name.to_owned()),
                message,
            ));
        }
        value
    }

    fn algorithm(&mut self) -> Option<Algorithm> {
        let names = || Algorithm::ALL.iter().map(|algorithm| algorithm.name());
        let text = self.variables.get(ALGORITHM)?.trim();
        let found = self.get(
            ALGORITHM,
            &join_or(names().map(ToOwned::to_owned)),
            Algorithm::from_name,
        );
        if let (None, Some(near), Some(error)) = (
            found,
            did_you_mean(text, names()),
            self.diagnostics.last_mut(),
        ) {
            error.message.push_str(&format!("; did you mean {near}?"));
        }
        found
    }

    fn number(&mut self, name: &str, expected: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let expected = match (*range.start(), *range.end()) {
            (min, u64::MAX) => format!("{expected} of at least {min}"),
            (min, max) => format!("{expected} from {min} to {max}"),
        };
        self.get(name, &expected, |text| {
            text.parse().ok().filter(|number| range.contains(number))
        })
    }

    /// The burst, if the algorithm has one.
    fn checked_burst(&mut self, algorithm: Algorithm, burst: u64) -> Option<u64> {
        let has_burst = matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
        if !has_burst {
            self.warn(
                BURST,
                format!(
                    "ignored with {algorithm}: only token_bucket and leaky_bucket have a burst; \
                     unset it"
                ),
            );
        }
        has_burst.then_some(burst)
    }

    /// The limit, parsed from text, so that the same rules apply as in a file.
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
                self.diagnostics.push(Diagnostic::error(
                    Location::Variable(name.to_owned()),
                    error.to_string(),
                ));
            })
            .ok()
    }

    /// Warns of a burst that is probably a mistake.
    fn warn_of_small_burst(&mut self, policies: &Policies) {
        if !self.variables.contains_key(BURST) {
            return;
        }
        let finding = policies
            .problems()
            .into_iter()
            .find(|problem| problem.key == "limit");
        if let Some(problem) = finding.filter(|problem| problem.severity == Severity::Warning) {
            self.warn(BURST, problem.message);
        }
    }

    /// Warns if the variables describe limits, but none sets a number.
    fn warn_of_missing_limits(&mut self) {
        if let Some(name) = [ALGORITHM, WINDOW, BURST]
            .into_iter()
            .find(|name| self.variables.contains_key(*name))
        {
            self.warn(
                name,
                format!(
                    "has no effect without a limit, so the built-in policy applies; set {DEFAULT}, \
                     {PER_IP} or {PER_USER}"
                ),
            );
        }
    }

    /// Warns of unknown variables that look like typos. Other programs use this prefix too.
    fn warn_of_typos(&mut self) {
        let others = self
            .variables
            .keys()
            .filter(|name| name.starts_with(PREFIX) && !ALL.contains(&name.as_str()));
        for name in others {
            let unset = ALL
                .into_iter()
                .filter(|known| !self.variables.contains_key(*known));
            if let Some(near) = did_you_mean(
                &name[PREFIX.len()..],
                unset.map(|known| &known[PREFIX.len()..]),
            ) {
                let message = format!("unknown variable, ignored; did you mean {PREFIX}{near}?");
                self.diagnostics.push(Diagnostic::warning(
                    Location::Variable(name.clone()),
                    message,
                ));
            }
        }
    }
}
