//! "Did you mean": the known word that is nearest to one that is not known.

/// Longer words are no slips of the finger, and comparing them would take long.
const LONGEST: usize = 64;

pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > LONGEST {
        return None;
    }
    let word = word.to_lowercase();
    // A slip for every four letters, one more for good measure.
    let most = 1 + word.chars().count() / 4;
    known
        .into_iter()
        .map(|known| {
            (
                strsim::damerau_levenshtein(&word, &known.to_lowercase()),
                known,
            )
        })
        // Every short word is near every other.
        .filter(|(apart, known)| *apart <= most && *apart < known.chars().count())
        .min_by_key(|(apart, _)| *apart)
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_slip_is_found_and_another_word_is_not() {
        let known = ["limit", "limits", "match", "name"];
        assert_eq!(nearest("limt", known), Some("limit"));
        assert_eq!(nearest("LIMITS", known), Some("limits"));
        assert_eq!(nearest("mathc", known), Some("match"));
        assert_eq!(nearest("burst", known), None);
        assert_eq!(nearest("", known), None);
        assert_eq!(nearest(&"x".repeat(1 << 20), known), None);
    }
}
