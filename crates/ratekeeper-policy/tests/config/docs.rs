//! The limits as Markdown.

use crate::good::EVERYTHING;
use crate::{EXAMPLE, load};

#[test]
fn the_limits_as_a_caller_reads_them() {
    snapshot!(load(EXAMPLE, &[]).config.unwrap().to_markdown());
    snapshot!(
        load(&EVERYTHING.replace("enabled = false", ""), &[])
            .config
            .unwrap()
            .to_markdown()
    );
    assert_eq!(
        load(EVERYTHING, &[]).config.unwrap().to_markdown(),
        "No limits are in force.\n"
    );
}
