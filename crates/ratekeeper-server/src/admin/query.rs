//! What stands behind the `?` of a path.

use crate::api::{Code, Problem, quoted};
use axum::http::Uri;

/// How many of something are asked for: `n`, of which there are at most so many.
pub(super) fn how_many(uri: &Uri, usual: usize, most: usize) -> Result<usize, Problem> {
    let mut many = usual;
    for pair in uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter(|pair| !pair.is_empty())
    {
        let invalid = |detail: String| Problem::new(Code::InvalidField, detail);
        let Some(number) = pair.strip_prefix("n=") else {
            return Err(invalid(format!(
                "{} is not known here; n is, as in ?n={usual}",
                quoted(pair)
            )));
        };
        many = number
            .parse()
            .ok()
            .filter(|many| (1..=most).contains(many))
            .ok_or_else(|| {
                invalid(format!(
                    "`n` must be a whole number from 1 to {most}, not {}",
                    quoted(number)
                ))
            })?;
    }
    Ok(many)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_things_is_within_bounds() {
        let many = |path: &'static str| how_many(&Uri::from_static(path), 20, 100).ok();
        assert_eq!(
            (
                many("/admin/top"),
                many("/admin/top?"),
                many("/admin/top?n=7")
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
            assert_eq!(many(wrong), None, "{wrong}");
        }
    }
}
