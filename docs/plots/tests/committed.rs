//! The docs cannot go stale: what is committed is what the program makes.

use std::fs;

#[test]
fn the_committed_plots_and_tables_are_what_the_program_makes() {
    for (path, made) in ratekeeper_plots::files().unwrap() {
        let there = fs::read_to_string(&path).unwrap_or_default();
        // Not assert_eq: two drawings side by side help nobody.
        assert!(
            there == made,
            "{} is stale: run `make plots`",
            path.display()
        );
    }
}
