//! Query strings of the admin API.

use crate::api::{Code, Problem, quoted};
use axum::http::Uri;

/// Reads `n`, the number of entries to return, from 1 to `max`.
pub(super) fn count(uri: &Uri, default: usize, max: usize) -> Result<usize, Problem> {
    let mut count = default;
    for pair in uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter(|pair| !pair.is_empty())
    {
        let invalid = |detail: String| Problem::new(Code::InvalidField, detail);
        let Some(number) = pair.strip_prefix("n=") else {
            return Err(invalid(format!(
                "unknown query parameter {}; use n, as in ?n={default}",
                quoted(pair)
            )));
        };
        count = number
            .parse()
            .ok()
            .filter(|count| (1..=max).contains(count))
            .ok_or_else(|| {
                invalid(format!(
                    "`n` must be a whole number from 1 to {max}, not {}",
                    quoted(number)
                ))
            })?;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_within_bounds() {
        let read = |path: &'static str| count(&Uri::from_static(path), 20, 100).ok();
        assert_eq!(
            (
                read("/admin/top"),
                read("/admin/top?"),
                read("/admin/top?n=7")
            ),
            (Some(20), Some(20), Some(7))
        );
        for wrong in [
            "/?n=0",
            "/?n=101",
            "/?n=",
            "/?n=x",
            "/?m=1",
            "/?n=99999999999999999999",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
