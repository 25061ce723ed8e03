//! "Did you mean": the known word that is closest to a misspelled one.

/// Longest word, in bytes, that is compared: longer ones are no typos, and comparing them is slow.
const MAX_WORD_LEN: usize = 64;

/// The known word with the smallest edit distance to `word`, if it is close enough for a typo.
pub(crate) fn did_you_mean<'a>(
    word: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    if word.len() > MAX_WORD_LEN {
        return None;
    }
    let word = word.to_lowercase();
    // One typo, and one more for every four letters.
    let max_distance = 1 + word.chars().count() / 4;
    known
        .into_iter()
        .map(|known| {
            (
                strsim::damerau_levenshtein(&word, &known.to_lowercase()),
                known,
            )
        })
        // All short words are close to each other.
        .filter(|(distance, known)| *distance <= max_distance && *distance < known.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::did_you_mean;

    #[test]
    fn a_typo_is_found_and_another_word_is_not() {
        let known = ["limit", "limits", "match", "name"];
        assert_eq!(did_you_mean("limt", known), Some("limit"));
        assert_eq!(did_you_mean("LIMITS", known), Some("limits"));
        assert_eq!(did_you_mean("mathc", known), Some("match"));
        assert_eq!(did_you_mean("burst", known), None);
        assert_eq!(did_you_mean("", known), None);
        assert_eq!(did_you_mean(&"x".repeat(1 << 20), known), None);
    }
}
