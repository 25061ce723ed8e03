//! Request checks against the policies in force.

use super::Engine;
use crate::request_check::{RequestError, RequestParts};
use ratekeeper::Store;

/// # Checking requests
impl<S: Store> Engine<S> {
    /// Rejects a request that a service may read differently than the policies do: a path with dot
    /// segments, hosts that disagree or have user information, different values of one header. Path
    /// and host are checked where a policy uses them, or always with `everything`; headers are
    /// those of the policies, and `more` of them, in lower case.
    ///
    /// For services that handle the request themselves, to call before they decide. A service that
    /// asks for decisions on behalf of others must reject ambiguous requests itself.
    pub fn check_request<'a, I: Iterator<Item = (&'a str, &'a [u8])>>(
        &self,
        request: RequestParts<'a, impl Fn() -> I>,
        more: &[&str],
        everything: bool,
    ) -> Result<(), RequestError> {
        self.inner
            .rules
            .load()
            .checks
            .check(request, more, everything)
    }
}
