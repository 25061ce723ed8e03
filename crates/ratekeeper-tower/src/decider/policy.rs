//! `PolicyDecider`: decides by an engine of policies.

use super::{Decider, DecisionFuture, RateLimitStatus, sealed};
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

/// Decides by an engine of policies; see [`RateLimitLayer::new`](crate::RateLimitLayer::new). A
/// handle: clones share the engine.
pub struct PolicyDecider<S = MemoryStore> {
    pub(crate) engine: Engine<S>,
    /// The header that names the user, and the peers that may set it.
    pub(crate) user: Option<(HeaderName, TrustedPeers)>,
    pub(crate) api_key: Option<HeaderName>,
    pub(crate) class: Option<HeaderName>,
    pub(crate) start: Option<HeaderName>,
    /// Whether requests never wait in the queues of adaptive limits.
    pub(crate) no_wait: bool,
    pub(crate) attributes: Option<Arc<Attributes>>,
    pub(crate) on_decision: Option<Arc<OnDecision>>,
}

/// A hook that is called with each decision.
pub(crate) type OnDecision = dyn Fn(&Head<'_>, &PolicyVerdict) + Send + Sync;

/// A function that adds attributes to a subject.
pub(crate) type Attributes = dyn for<'a> Fn(&Head<'a>, Subject<'a>) -> Subject<'a> + Send + Sync;

/// A header map as the policy engine reads it.
struct HeaderMapRef<'a>(&'a HeaderMap);

impl Headers for HeaderMapRef<'_> {
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(|value| value.as_bytes())
    }

    fn has_value(&self, name: &str, value: &[u8]) -> bool {
        self.0
            .get_all(name)
            .iter()
            .any(|present| present.as_bytes() == value)
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
            no_wait: self.no_wait,
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
            no_wait: false,
            attributes: None,
            on_decision: None,
        }
    }

    fn subject<'a>(&self, head: &Head<'a>, headers: &'a HeaderMapRef<'a>) -> Subject<'a> {
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
        let header_value = |name: Option<&HeaderName>| {
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
            .filter(|(_, peers)| peers.contains(head.client.peer()));
        if let Some(user) = header_value(user.map(|(name, _)| name)) {
            subject = subject.user(user);
        }
        if let Some(key) = header_value(self.api_key.as_ref()) {
            subject = subject.api_key(key);
        }
        if head.is_from_trusted_proxy() {
            if let Some(class) = header_value(self.class.as_ref()) {
                subject = subject.with("class", class);
            }
            if let Some(start) = header_value(self.start.as_ref()).and_then(request_start) {
                subject = subject.start(start);
            }
        }
        if self.no_wait {
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
    type PendingDecision = PolicyVerdict;
    type PrehashedKey = Infallible;

    /// The matching policies depend on more than the address.
    #[inline(always)]
    fn prehash(&self, _: IpAddr) -> Option<Infallible> {
        None
    }

    #[inline(always)]
    fn decide_prehashed(&self, key: Infallible) -> Result<PolicyVerdict, Option<PolicyVerdict>> {
        match key {}
    }

    fn validate(&self, head: &Head<'_>, everything: bool) -> Result<(), RequestError> {
        let mut trusted_headers: SmallVec<[&str; 4]> = SmallVec::new();
        let user = self.user.as_ref().map(|(name, _)| name);
        trusted_headers.extend(
            [user, self.api_key.as_ref()]
                .into_iter()
                .flatten()
                .map(HeaderName::as_str),
        );
        if head.is_from_trusted_proxy() {
            trusted_headers.extend(
                [&self.class, &self.start]
                    .into_iter()
                    .flatten()
                    .map(HeaderName::as_str),
            );
        }
        self.engine
            .check_request(head.parts(), &trusted_headers, everything)
    }

    fn decide(
        &self,
        head: &Head<'_>,
        cost: u64,
        pending: &mut Option<PolicyVerdict>,
    ) -> Option<DecisionFuture<PolicyVerdict>> {
        let headers = HeaderMapRef(head.headers);
        match self
            .engine
            .try_decide(&self.subject(head, &headers).cost(cost))
        {
            MaybeReady::Ready(verdict) => {
                *pending = Some(verdict);
                None
            }
            MaybeReady::Pending(future) => Some(Box::pin(future)),
        }
    }

    fn is_allowed(&self, pending: &PolicyVerdict) -> bool {
        pending.is_allowed()
    }

    fn delay(&self, pending: &PolicyVerdict) -> Duration {
        pending.delay()
    }

    fn sleep(&self, time: Duration) -> Sleep {
        let store = self.engine.store();
        store.sleep_until(store.now() + time)
    }

    fn denial<'a>(&'a self, pending: &'a PolicyVerdict) -> Denial<'a> {
        Denial::of_verdict(pending)
    }

    fn shadow_denial<'a>(&'a self, pending: &'a PolicyVerdict) -> Option<Denial<'a>> {
        Denial::of_shadow_limits(pending)
    }

    fn status(&self, pending: &PolicyVerdict) -> Option<RateLimitStatus> {
        let tightest = pending.tightest()?;
        let decision = tightest.decision();
        (!decision.is_unlimited()).then(|| RateLimitStatus {
            policy: tightest.policy().into(),
            limit: decision.capacity(),
            remaining: decision.remaining(),
            reset_after: decision.reset_after(),
            shadow_denied: pending
                .limits()
                .any(|limit| limit.outcome() == AskOutcome::ShadowDenied),
        })
    }

    fn write_headers(
        &self,
        pending: &PolicyVerdict,
        dialects: Dialects,
        headers: &mut HeaderMap,
        retry_after: Option<u64>,
    ) {
        response::write_headers(
            dialects,
            headers,
            pending,
            retry_after,
            pending.decided_at().since_unix(),
        );
    }

    #[inline]
    fn is_observed(&self) -> bool {
        self.on_decision.is_some()
    }

    fn observe(&self, head: &Head<'_>, pending: &PolicyVerdict) {
        if let Some(hook) = &self.on_decision {
            hook(head, pending);
        }
    }

    fn key_hash(&self, pending: &PolicyVerdict) -> u64 {
        pending.key_hash()
    }

    fn holds_permits(&self, pending: &PolicyVerdict) -> bool {
        pending.holds_permits()
    }

    fn is_settled(&self, pending: &PolicyVerdict, completion: &Completion) -> bool {
        pending.is_settled_by(completion)
    }

    fn settle(&self, pending: PolicyVerdict, completion: Completion) {
        if let MaybeReady::Pending(future) = self.engine.try_settle(pending, completion) {
            spawn_settlement(future);
        }
    }

    fn cancel(&self, pending: PolicyVerdict) {
        if let MaybeReady::Pending(future) =
            self.engine.try_settle(pending, Completion::cancelled())
        {
            spawn_settlement(future);
        }
    }
}

/// Runs a settlement in the background. Without a runtime it is dropped: the charge stays, and
/// permits expire.
///
/// The first poll is made here, because it queues the refund: the client's next request may be read
/// before a spawned task runs, and must not be decided ahead of the refund.
fn spawn_settlement(future: impl Future<Output = ()> + Send + 'static) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    let mut future = Box::pin(future);
    if future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
        .is_pending()
    {
        runtime.spawn(future);
    }
}

#[cfg(test)]
mod tests {
    use super::spawn_settlement;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    /// A refund must be queued before the client's next request is decided.
    #[tokio::test]
    async fn a_settlement_has_begun_before_the_response_is_written() {
        static STEPS: AtomicU32 = AtomicU32::new(0);
        spawn_settlement(async {
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
