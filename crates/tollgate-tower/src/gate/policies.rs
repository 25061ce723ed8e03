//! An engine of policies: which limits apply follows from the request.

use super::{Gate, RateLimitStatus, sealed};
use crate::answer::{self, Denial, Dialects};
use crate::head::Head;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, HeaderName};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;
use tollgate::{AskOutcome, Clock, DefaultClock, MemoryStore, Sleep};
use tollgate_policy::{Ending, Engine, Headers, Subject, Verdict, credentials};

/// An engine of policies; see [`RateLimitLayer::new`](crate::RateLimitLayer::new). A handle: clones share the engine.
#[derive(Clone)]
pub struct ByPolicies<C: Clock = DefaultClock> {
    pub(crate) engine: Engine<MemoryStore<C>>,
    pub(crate) user: Option<HeaderName>,
    pub(crate) api_key: Option<HeaderName>,
    pub(crate) attributes: Option<Arc<Attributes>>,
}

/// Adds to a subject what only you know.
pub(crate) type Attributes = dyn for<'a> Fn(&Head<'a>, Subject<'a>) -> Subject<'a> + Send + Sync;

/// The headers of a request, for those who ask for them by name.
struct InMap<'a>(&'a HeaderMap);

impl Headers for InMap<'_> {
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(|value| value.as_bytes())
    }

    fn says(&self, name: &str, value: &[u8]) -> bool {
        self.0.get_all(name).iter().any(|said| said.as_bytes() == value)
    }
}

impl<C: Clock> ByPolicies<C> {
    pub(crate) fn new(engine: Engine<MemoryStore<C>>) -> Self {
        Self { engine, user: None, api_key: None, attributes: None }
    }

    fn subject<'a>(&self, head: &Head<'a>, headers: &'a InMap<'a>) -> Subject<'a> {
        let mut subject = Subject::new().method(head.method.as_str()).path(head.uri.path()).headers(headers);
        let host = head.uri.authority().map(|authority| authority.as_str().as_bytes());
        if let Some(host) = host.or_else(|| head.headers.get(HOST).map(|host| host.as_bytes())) {
            subject = subject.host(host);
        }
        if let Some(ip) = head.ip() {
            subject = subject.ip(ip);
        }
        if let Some(route) = crate::route::of(head.extensions) {
            subject = subject.endpoint(route);
        }
        let said = |name: &Option<HeaderName>| {
            let name = name.as_ref()?;
            let value = head.headers.get(name)?.as_bytes();
            Some(if *name == AUTHORIZATION { credentials(value) } else { value })
        };
        if let Some(user) = said(&self.user) {
            subject = subject.user(user);
        }
        if let Some(key) = said(&self.api_key) {
            subject = subject.api_key(key);
        }
        match &self.attributes {
            Some(attributes) => attributes(head, subject),
            None => subject,
        }
    }
}

/// A verdict, which is large, where it need not be moved with the futures that hold it.
///
/// Its place comes from those that earlier requests on this thread left, so that none is allocated for each.
pub struct Ticket(Option<Place>);

/// Empty only among the spare ones.
type Place = Box<Option<Verdict>>;

/// As many places are kept by a thread for later: about 100 KB.
const MOST_SPARE: usize = 64;

thread_local!(static SPARE: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) });

impl Ticket {
    fn new(verdict: Verdict) -> Self {
        let mut place = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
        *place = Some(verdict);
        Self(Some(place))
    }

    fn verdict(&self) -> &Verdict {
        self.0.as_deref().and_then(Option::as_ref).expect("it is there until the ticket is gone")
    }

    fn into_verdict(mut self) -> Verdict {
        self.0.as_deref_mut().and_then(Option::take).expect("it is there until the ticket is gone")
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Some(mut place) = self.0.take() else { return };
        // Permits go back here, whatever becomes of the place.
        *place = None;
        // A thread that ends keeps nothing.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < MOST_SPARE {
                spare.push(place);
            }
        });
    }
}

impl<C: Clock> sealed::Sealed for ByPolicies<C> {}

impl<C: Clock> Gate for ByPolicies<C> {
    type Ticket = Ticket;

    fn decide(&self, head: &Head<'_>, cost: u64) -> Ticket {
        let headers = InMap(head.headers);
        Ticket::new(self.engine.decide_n_now(&self.subject(head, &headers), cost))
    }

    fn is_allowed(&self, ticket: &Ticket) -> bool {
        ticket.verdict().is_allowed()
    }

    fn delay(&self, ticket: &Ticket) -> Duration {
        ticket.verdict().delay()
    }

    fn sleep(&self, time: Duration) -> Sleep {
        let clock = self.engine.store().clock();
        clock.sleep_until(clock.now() + time)
    }

    fn denial<'a>(&'a self, ticket: &'a Ticket) -> Denial<'a> {
        Denial::of(ticket.verdict())
    }

    fn shadow<'a>(&'a self, ticket: &'a Ticket) -> Option<Denial<'a>> {
        Denial::of_shadows(ticket.verdict())
    }

    fn status(&self, ticket: &Ticket) -> Option<RateLimitStatus> {
        let verdict = ticket.verdict();
        let tightest = verdict.tightest()?;
        let decision = tightest.decision();
        (!decision.is_unlimited()).then(|| RateLimitStatus {
            policy: tightest.policy().into(),
            limit: decision.limit(),
            remaining: decision.remaining(),
            reset_after: decision.reset_after(),
            shadow_denied: verdict.limits().any(|limit| limit.outcome() == AskOutcome::ShadowDenied),
        })
    }

    fn tell(&self, ticket: &Ticket, dialects: Dialects, headers: &mut HeaderMap, retry_after: Option<u64>) {
        let verdict = ticket.verdict();
        answer::write(dialects, headers, verdict, retry_after, verdict.decided_at().since_unix());
    }

    fn key_hash(&self, ticket: &Ticket) -> u64 {
        ticket.verdict().key_hash()
    }

    fn keeps(&self, ticket: &Ticket) -> bool {
        ticket.verdict().limits().any(|limit| limit.limit().rate().is_none())
    }

    fn settle(&self, ticket: Ticket, ending: Ending) {
        self.engine.settle_now(ticket.into_verdict(), ending);
    }

    fn cancel(&self, ticket: Ticket) {
        self.engine.cancel_now(ticket.into_verdict());
    }
}
