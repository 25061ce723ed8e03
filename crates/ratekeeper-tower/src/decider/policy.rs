//! An engine of policies: which limits apply follows from the request.

use super::{Decider, Later, RateLimitStatus, sealed};
use crate::head::Head;
use crate::response::{self, Denial, Dialects};
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, HeaderName};
use ratekeeper::{MemoryStore, Store, clock::Sleep, store::AskOutcome};
use ratekeeper_policy::{
    Completion, Engine, Headers, PolicyVerdict, Subject, engine::MaybeReady, request::RequestError,
    request::TrustedPeers, request::credentials, request::request_start,
};
use smallvec::SmallVec;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

/// An engine of policies; see [`RateLimitLayer::new`](crate::RateLimitLayer::new). A handle: clones
/// share the engine.
pub struct PolicyDecider<S = MemoryStore> {
    pub(crate) engine: Engine<S>,
    /// The header that names the user, and the peers that set it.
    pub(crate) user: Option<(HeaderName, TrustedPeers)>,
    pub(crate) api_key: Option<HeaderName>,
    pub(crate) class: Option<HeaderName>,
    pub(crate) start: Option<HeaderName>,
    /// Whether nobody waits in line.
    pub(crate) at_once: bool,
    pub(crate) attributes: Option<Arc<Attributes>>,
    pub(crate) on_decision: Option<Arc<OnDecision>>,
}

/// Is told of each decision.
pub(crate) type OnDecision = dyn Fn(&Head<'_>, &PolicyVerdict) + Send + Sync;

/// Adds to a subject what only you know.
pub(crate) type Attributes = dyn for<'a> Fn(&Head<'a>, Subject<'a>) -> Subject<'a> + Send + Sync;

/// The headers of a request, for those who ask for them by name.
struct InMap<'a>(&'a HeaderMap);

impl Headers for InMap<'_> {
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(|value| value.as_bytes())
    }

    fn has_value(&self, name: &str, value: &[u8]) -> bool {
        self.0
            .get_all(name)
            .iter()
            .any(|said| said.as_bytes() == value)
    }
}

impl<S> Clone for PolicyDecider<S> {
    fn clone(&self) -> Self {
        Self {
            engine: self.engine.clone(),
            user: self.user.clone(),
            api_key: self.api_key.clone(),
            class: self.class.clone(),
            start: self.start.clone(),
            at_once: self.at_once,
            attributes: self.attributes.clone(),
            on_decision: self.on_decision.clone(),
        }
    }
}

impl<S: Store> PolicyDecider<S> {
    pub(crate) fn new(engine: Engine<S>) -> Self {
        Self {
            engine,
            user: None,
            api_key: None,
            class: None,
            start: None,
            at_once: false,
            attributes: None,
            on_decision: None,
        }
    }

    fn subject<'a>(&self, head: &Head<'a>, headers: &'a InMap<'a>) -> Subject<'a> {
        let mut subject = Subject::new()
            .method(head.method.as_str())
            .path(head.uri.path())
            .headers(headers);
        let host = head
            .uri
            .authority()
            .map(|authority| authority.as_str().as_bytes());
        if let Some(host) = host.or_else(|| head.headers.get(HOST).map(|host| host.as_bytes())) {
            subject = subject.host(host);
        }
        if let Some(address) = head.ip() {
            subject = subject.ip(address);
        }
        if let Some(route) = crate::route::of(head.extensions) {
            subject = subject.endpoint(route);
        }
        let said = |name: Option<&HeaderName>| {
            let name = name?;
            let value = head.headers.get(name)?.as_bytes();
            Some(if *name == AUTHORIZATION {
                credentials(value)
            } else {
                value
            })
        };
        let user = self
            .user
            .as_ref()
            .filter(|(_, from)| from.contains(head.client.peer()));
        if let Some(user) = said(user.map(|(name, _)| name)) {
            subject = subject.user(user);
        }
        if let Some(key) = said(self.api_key.as_ref()) {
            subject = subject.api_key(key);
        }
        if head.is_from_trusted_proxy() {
            if let Some(class) = said(self.class.as_ref()) {
                subject = subject.with("class", class);
            }
            if let Some(start) = said(self.start.as_ref()).and_then(request_start) {
                subject = subject.start(start);
            }
        }
        if self.at_once {
            subject = subject.no_wait();
        }
        match &self.attributes {
            Some(attributes) => attributes(head, subject),
            None => subject,
        }
    }
}

impl<S: Store> sealed::Sealed for PolicyDecider<S> {}

impl<S: Store + 'static> Decider for PolicyDecider<S> {
    type Ticket = PolicyVerdict;
    type Seat = Infallible;

    /// Which policies apply follows from more.
    #[inline(always)]
    fn seat(&self, _: IpAddr) -> Option<Infallible> {
        None
    }

    #[inline(always)]
    fn pass(&self, seat: Infallible) -> Result<PolicyVerdict, Option<PolicyVerdict>> {
        match seat {}
    }

    fn check(&self, head: &Head<'_>, everything: bool) -> Result<(), RequestError> {
        let mut believed: SmallVec<[&str; 4]> = SmallVec::new();
        let user = self.user.as_ref().map(|(name, _)| name);
        believed.extend(
            [user, self.api_key.as_ref()]
                .into_iter()
                .flatten()
                .map(HeaderName::as_str),
        );
        if head.is_from_trusted_proxy() {
            believed.extend(
                [&self.class, &self.start]
                    .into_iter()
                    .flatten()
                    .map(HeaderName::as_str),
            );
        }
        self.engine
            .check_request(head.parts(), &believed, everything)
    }

    fn decide(
        &self,
        head: &Head<'_>,
        cost: u64,
        ticket: &mut Option<PolicyVerdict>,
    ) -> Option<Later<PolicyVerdict>> {
        let headers = InMap(head.headers);
        match self.engine.try_decide(&self.subject(head, &headers), cost) {
            MaybeReady::Ready(verdict) => {
                *ticket = Some(verdict);
                None
            }
            MaybeReady::Pending(later) => Some(Box::pin(later)),
        }
    }

    fn is_allowed(&self, ticket: &PolicyVerdict) -> bool {
        ticket.is_allowed()
    }

    fn delay(&self, ticket: &PolicyVerdict) -> Duration {
        ticket.delay()
    }

    fn sleep(&self, time: Duration) -> Sleep {
        let store = self.engine.store();
        store.sleep_until(store.now() + time)
    }

    fn denial<'a>(&'a self, ticket: &'a PolicyVerdict) -> Denial<'a> {
        Denial::of(ticket)
    }

    fn shadow<'a>(&'a self, ticket: &'a PolicyVerdict) -> Option<Denial<'a>> {
        Denial::of_shadows(ticket)
    }

    fn status(&self, ticket: &PolicyVerdict) -> Option<RateLimitStatus> {
        let tightest = ticket.tightest()?;
        let decision = tightest.decision();
        (!decision.is_unlimited()).then(|| RateLimitStatus {
            policy: tightest.policy().into(),
            limit: decision.capacity(),
            remaining: decision.remaining(),
            reset_after: decision.reset_after(),
            shadow_denied: ticket
                .limits()
                .any(|limit| limit.outcome() == AskOutcome::ShadowDenied),
        })
    }

    fn tell(
        &self,
        ticket: &PolicyVerdict,
        dialects: Dialects,
        headers: &mut HeaderMap,
        retry_after: Option<u64>,
    ) {
        response::write(
            dialects,
            headers,
            ticket,
            retry_after,
            ticket.decided_at().since_unix(),
        );
    }

    #[inline]
    fn is_observed(&self) -> bool {
        self.on_decision.is_some()
    }

    fn observe(&self, head: &Head<'_>, ticket: &PolicyVerdict) {
        if let Some(hook) = &self.on_decision {
            hook(head, ticket);
        }
    }

    fn key_hash(&self, ticket: &PolicyVerdict) -> u64 {
        ticket.key_hash()
    }

    fn keeps(&self, ticket: &PolicyVerdict) -> bool {
        ticket.holds_permits()
    }

    fn is_settled(&self, ticket: &PolicyVerdict, ending: &Completion) -> bool {
        ticket.is_settled_by(ending)
    }

    fn settle(&self, ticket: PolicyVerdict, ending: Completion) {
        if let MaybeReady::Pending(later) = self.engine.try_settle(ticket, ending) {
            in_background(later);
        }
    }

    fn cancel(&self, ticket: PolicyVerdict) {
        if let MaybeReady::Pending(later) = self.engine.try_cancel(ticket) {
            in_background(later);
        }
    }
}

/// Runs a settlement in the background. Without a runtime it is dropped: the charge stays, and
/// permits expire.
///
/// The first poll is made here, because it queues the refund: the client's next request, which can
/// be read before a spawned task runs, must not be decided ahead of it.
fn in_background(later: impl Future<Output = ()> + Send + 'static) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    let mut later = Box::pin(later);
    if later
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
        .is_pending()
    {
        runtime.spawn(later);
    }
}

#[cfg(test)]
mod tests {
    use super::in_background;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    /// A refund queued only when the runtime gets to it comes after the client's next request.
    #[tokio::test]
    async fn a_settlement_has_begun_before_the_response_is_written() {
        static STEPS: AtomicU32 = AtomicU32::new(0);
        in_background(async {
            STEPS.store(1, SeqCst);
            tokio::task::yield_now().await;
            STEPS.store(2, SeqCst);
        });
        assert_eq!(STEPS.load(SeqCst), 1);
        while STEPS.load(SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
    }
}
