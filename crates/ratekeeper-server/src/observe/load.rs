//! CPU and memory load of this container or machine, for load shedding.

use ratekeeper::adaptive::Load;
use ratekeeper_load::LoadReader;
use ratekeeper_policy::engine::LoadSource;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval between readings; CPU use over less time is noise.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// A load source that reads system files when it is called, at most once a second.
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
        if read.is_none_or(|read| read.elapsed() >= READ_INTERVAL) {
            (*read, *load) = (Some(Instant::now()), reader.read());
        }
        *load
    })
}
