//! A trace: one request per line, with its outcome.
//!
//! ```text
//! POST /login ip=203.0.113.7      200 ×5, each ends 401
//! POST /login ip=203.0.113.7      429 login, retry in 60 s
//! # a comment
//! wait 60 s
//! POST /login ip=203.0.113.7      200, in flight as A
//! POST /login ip=203.0.113.8      waits as B
//! A ends 200
//! B passes
//! ```
//!
//! Left, up to two spaces: method, path, attributes; a value with spaces is in quotes, and `{1..9}`
//! stands for each of these numbers. Right: the status, the source of the decision (the policy that
//! denied it, `NAME ban`, `allow list`, `deny list`, `no policy`), the number of requests (`×5`);
//! then, after commas:
//! - `retry in TIME`, `never`, or `when one ends` of a denial,
//! - `starts in TIME` of a request that has to wait,
//! - `NAME would deny` of a policy in shadow mode,
//! - `TIME apart` of requests that come one after the other,
//! - `ends STATUS`, `costs N` (or `each ends …`), and `in flight as X`: how it continues.
//!
//! `waits as X` is the only outcome of a request that waits for a permit; it `passes` later, and
//! then is in flight as X.
//!
//! Omitted outcomes must not occur: a request that has to wait is never just `200`.

use crate::page::Page;
use crate::{TestEngine, Wrong, time};
use ratekeeper::{ManualClock, store::AskOutcome};
use ratekeeper_policy::{
    Completion, PolicyVerdict, Reason, Subject, engine::Ban, engine::MaybeReady,
};
use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The outcome of a request.
#[derive(PartialEq, Default, Debug)]
struct Answer {
    status: u16,
    /// The source of the decision; empty if the limits allowed it.
    by: String,
    when: When,
    starts_in: Duration,
    /// The policies in shadow mode that would deny it.
    would_deny: Vec<String>,
}

/// When a denied request would be allowed.
#[derive(PartialEq, Default, Debug)]
enum When {
    #[default]
    Now,
    Later(Duration),
    Never,
    OneEnds,
}

/// The rest of a line, after the outcome.
#[derive(Default)]
struct Course {
    times: Option<usize>,
    apart: Duration,
    ending: Option<Completion>,
    in_flight_as: Option<String>,
}

/// Requests that have not ended.
#[derive(Default)]
struct InFlight {
    in_flight: HashMap<String, PolicyVerdict>,
    waiting: HashMap<String, Waiting>,
}

/// A request that waits for a permit.
type Waiting = Pin<Box<dyn Future<Output = PolicyVerdict>>>;

fn poll(waiting: &mut Waiting) -> Option<PolicyVerdict> {
    match waiting
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(verdict) => Some(verdict),
        Poll::Pending => None,
    }
}

pub(crate) fn run(
    page: &Page,
    lines: &[(usize, &str)],
    engine: &TestEngine,
    clock: &ManualClock,
    wrong: &mut Wrong,
) {
    let mut in_flight = InFlight::default();
    for (number, line) in lines.iter().map(|(number, line)| (*number, line.trim())) {
        if let Err(what) = step(line, engine, clock, &mut in_flight) {
            wrong.push(page.at(number, &format!("{what}\n    {line}")));
        }
    }
}

fn step(
    line: &str,
    engine: &TestEngine,
    clock: &ManualClock,
    in_flight: &mut InFlight,
) -> Result<(), String> {
    let InFlight { in_flight, waiting } = in_flight;
    if line.is_empty() || line.starts_with('#') {
        return Ok(());
    }
    if let Some(text) = line.strip_prefix("wait ") {
        clock.advance(time::parse(text).ok_or("this is no time")?);
        return Ok(());
    }
    let Some((request, answer)) = line.rsplit_once("  ") else {
        let (name, end) = line.split_once(' ').ok_or("this is no step")?;
        if end == "passes" {
            let mut one = waiting
                .remove(name)
                .ok_or_else(|| format!("`{name}` does not wait"))?;
            let verdict = poll(&mut one)
                .filter(PolicyVerdict::is_allowed)
                .ok_or_else(|| format!("`{name}` does not pass"))?;
            in_flight.insert(name.to_owned(), verdict);
            return Ok(());
        }
        let verdict = in_flight
            .remove(name)
            .ok_or_else(|| format!("`{name}` is not in flight"))?;
        engine.settle_now(verdict, ending(end, None).ok_or("this is no ending")?);
        return Ok(());
    };
    if let Some(name) = answer.strip_prefix("waits as ") {
        let mut later = decide(engine, &words(request)?)
            .err()
            .ok_or("it does not wait")?;
        if poll(&mut later).is_some() {
            return Err("it does not wait".to_owned());
        }
        waiting.insert(name.to_owned(), later);
        return Ok(());
    }
    let (expected, course) = read(answer)?;
    for words in expand(words(request)?)? {
        for time in 1..=course.times.unwrap_or(1) {
            clock.advance(if time > 1 {
                course.apart
            } else {
                Duration::ZERO
            });
            // A request that would have to wait must be written as `waits as`.
            let verdict = decide(engine, &words).map_err(|_| "it waits")?;
            let got = Answer::of(&verdict);
            if got != expected {
                return Err(format!(
                    "request {time} of `{}` gets: {got}",
                    words.join(" ")
                ));
            }
            match (&course.in_flight_as, course.ending) {
                (Some(name), _) => drop(in_flight.insert(name.clone(), verdict)),
                (None, Some(ending)) => engine.settle_now(verdict, ending),
                (None, None) => drop(verdict),
            }
        }
    }
    Ok(())
}

fn decide(engine: &TestEngine, words: &[String]) -> Result<PolicyVerdict, Waiting> {
    let pairs = words[2..].iter().filter_map(|word| word.split_once('='));
    let (headers, others): (Vec<_>, Vec<_>) =
        pairs.partition(|(name, _)| name.starts_with("header:"));
    let headers: Vec<_> = headers
        .into_iter()
        .map(|(name, value)| (&name["header:".len()..], value))
        .collect();
    let request = Subject::new()
        .method(&words[0])
        .path(&words[1])
        .headers(&headers);
    let subject = others
        .into_iter()
        .fold(request, |subject, (name, value)| subject.with(name, value));
    match engine.try_decide(&subject) {
        MaybeReady::Ready(verdict) => Ok(verdict),
        MaybeReady::Pending(later) => Err(Box::pin(later) as Waiting),
    }
}

/// Method, path, and `name=value`; quotes hold spaces together.
fn words(request: &str) -> Result<Vec<String>, String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for letter in request.trim().chars() {
        match letter {
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            letter => words.last_mut().unwrap().push(letter),
        }
    }
    words.retain(|word| !word.is_empty());
    let attributes = words.get(2..).ok_or("a request has a method and a path")?;
    match attributes.iter().find(|word| !word.contains('=')) {
        Some(word) => Err(format!("`{word}` has no value")),
        None => Ok(words),
    }
}

/// One request for each number of `{1..9}`.
fn expand(words: Vec<String>) -> Result<Vec<Vec<String>>, String> {
    let Some(at) = words.iter().position(|word| word.contains('{')) else {
        return Ok(vec![words]);
    };
    let range = |word: &str| {
        let (before, rest) = word.split_once('{')?;
        let (range, after) = rest.split_once('}')?;
        let (first, last) = range.split_once("..")?;
        let numbers = first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?;
        Some(
            numbers
                .map(|number| format!("{before}{number}{after}"))
                .collect::<Vec<_>>(),
        )
    };
    let each = range(&words[at]).ok_or("a range is written {1..9}")?;
    Ok(each
        .into_iter()
        .map(|word| [&words[..at], &[word], &words[at + 1..]].concat())
        .collect())
}

fn ending(text: &str, before: Option<Completion>) -> Option<Completion> {
    match text.split_once(' ')? {
        ("ends", status) => Some(Completion::status(status.parse().ok()?)),
        ("costs", cost) => Some(before.unwrap_or_default().cost(cost.parse().ok()?)),
        _ => None,
    }
}

fn read(text: &str) -> Result<(Answer, Course), String> {
    let mut answer = Answer::default();
    let mut course = Course::default();
    let mut clauses = text.trim().split(", ");
    for word in clauses.next().unwrap_or_default().split(' ') {
        if let Some(times) = word.strip_prefix('×') {
            course.times = Some(
                times
                    .parse()
                    .map_err(|_| format!("`{word}` is no number of times"))?,
            );
        } else if answer.status == 0 {
            answer.status = word.parse().map_err(|_| format!("`{word}` is no status"))?;
        } else {
            answer
                .by
                .push_str(if answer.by.is_empty() { "" } else { " " });
            answer.by.push_str(word);
        }
    }
    for clause in clauses {
        let time = |text: &str| time::parse(text).ok_or_else(|| format!("`{text}` is no time"));
        let clause = clause.strip_prefix("each ").unwrap_or(clause);
        if let Some(after) = clause.strip_prefix("retry in ") {
            answer.when = When::Later(time(after)?);
        } else if let Some(after) = clause.strip_prefix("starts in ") {
            answer.starts_in = time(after)?;
        } else if let Some(apart) = clause.strip_suffix(" apart") {
            course.apart = time(apart)?;
        } else if let Some(policy) = clause.strip_suffix(" would deny") {
            answer.would_deny.push(policy.to_owned());
        } else if let Some(name) = clause.strip_prefix("in flight as ") {
            course.in_flight_as = Some(name.to_owned());
        } else if clause == "never" {
            answer.when = When::Never;
        } else if clause == "when one ends" {
            answer.when = When::OneEnds;
        } else {
            let ending = ending(clause, course.ending);
            course.ending = Some(ending.ok_or_else(|| format!("`{clause}` says nothing known"))?);
        }
    }
    Ok((answer, course))
}

impl Answer {
    fn of(verdict: &PolicyVerdict) -> Self {
        let policy = verdict.policy().unwrap_or_default();
        let by = match verdict.reason() {
            Reason::Limits => policy.to_owned(),
            Reason::Ban(Ban::Penalty) => format!("{policy} ban"),
            reason => reason.name().replace('_', " "),
        };
        let when = match verdict.retry_after() {
            _ if verdict.is_allowed() || matches!(verdict.reason(), Reason::TooLate) => When::Now,
            _ if verdict.is_never() => When::Never,
            Some(after) => When::Later(after),
            None => When::OneEnds,
        };
        let watching = verdict
            .limits()
            .filter(|limit| limit.outcome() == AskOutcome::ShadowDenied);
        let mut would_deny: Vec<_> = watching.map(|limit| limit.policy().to_owned()).collect();
        would_deny.dedup();
        Self {
            status: verdict.status(),
            by,
            when,
            starts_in: verdict.delay(),
            would_deny,
        }
    }
}

impl fmt::Display for Answer {
    /// As it is written in a trace.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)?;
        if !self.by.is_empty() {
            write!(f, " {}", self.by)?;
        }
        match &self.when {
            When::Now => {}
            When::Later(after) => write!(f, ", retry in {}", time::text(*after))?,
            When::Never => f.write_str(", never")?,
            When::OneEnds => f.write_str(", when one ends")?,
        }
        if !self.starts_in.is_zero() {
            write!(f, ", starts in {}", time::text(self.starts_in))?;
        }
        self.would_deny
            .iter()
            .try_for_each(|policy| write!(f, ", {policy} would deny"))
    }
}

#[test]
fn a_line_reads_back() {
    for text in [
        "200",
        "200 no policy",
        "429 login, retry in 60 s",
        "429 crawl ban, retry in 1 h",
        "503 a, never",
        "429 slots, when one ends",
        "200, starts in 1500 ms",
        "200, new would deny",
    ] {
        let text = text.replace("60 s", "1 min");
        assert_eq!(read(&text).unwrap().0.to_string(), text);
    }
    assert_eq!(
        read("429 a, retry in 1.5 s").unwrap().0,
        read("429 a ×3, retry in 1500 ms, ends 200").unwrap().0
    );
    for wrong in [
        "",
        "ok",
        "200 ×",
        "200, later",
        "429 a, retry in a while",
        "200, ends well",
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
    let request = words(r#"GET /x header:user-agent="a b" n={1..3}"#).unwrap();
    assert_eq!(
        expand(request).unwrap()[2],
        ["GET", "/x", "header:user-agent=a b", "n=3"]
    );
    assert!(
        words("GET").is_err()
            && words("GET /x ip").is_err()
            && expand(words("GET /{1.3}").unwrap()).is_err()
    );
}
