//! The limits as Markdown: `config docs`.

use crate::good::EVERYTHING;
use crate::{EXAMPLE, load};

#[test]
fn limits_as_markdown() {
    snapshot!(load(EXAMPLE, &[]).config.unwrap().to_markdown());
    snapshot!(
        load(&EVERYTHING.replace("enabled = false", ""), &[])
            .config
            .unwrap()
            .to_markdown()
    );
    assert_eq!(
        load(EVERYTHING, &[]).config.unwrap().to_markdown(),
        "No limits are enforced.\n"
    );
}
