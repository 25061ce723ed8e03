//! How busy this container or machine is, for shedding by it.

use ratekeeper::adaptive::Load;
use ratekeeper_load::LoadReader;
use ratekeeper_policy::engine::LoadSource;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A share of the processors over less time is chance.
const FRESH: Duration = Duration::from_secs(1);

/// Reads files of the system, once a second at most, and only where something asks.
pub(crate) fn source() -> LoadSource {
    let reader = LoadReader::new();
    let last = Mutex::new((
        None::<Instant>,
        Load {
            cpu: f64::NAN,
            memory: f64::NAN,
        },
    ));
    LoadSource::new(move || {
        let (read, load) = &mut *last.lock().unwrap_or_else(PoisonError::into_inner);
        if read.is_none_or(|read| read.elapsed() >= FRESH) {
            (*read, *load) = (Some(Instant::now()), reader.read());
        }
        *load
    })
}
