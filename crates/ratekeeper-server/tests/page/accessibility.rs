//! Accessibility: names, headings, captions, contrast.

use crate::{ask, open, serve};
use serde_json::Value;

/// Roles that require a name.
const CONTROLS: [&str; 10] = [
    "button",
    "link",
    "textbox",
    "combobox",
    "slider",
    "radio",
    "spinbutton",
    "DisclosureTriangle",
    "image",
    "table",
];

const VIEWS: [&str; 8] = [
    "overview",
    "policies",
    "keys",
    "shadow",
    "try",
    "overrides",
    "audit",
    "playground",
];

/// Text with less contrast to its background than WCAG AA requires.
const LOW_CONTRAST: &str = r#"(() => {
  const read = (text) => {
    const numbers = text.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0, 0];
    const scale = text.startsWith("color(") ? 255 : 1;
    return [...numbers.slice(0, 3).map((n) => n * scale), numbers[3] ?? 1];
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((n, at) => n * a + under[at] * (1 - a));
  const behind = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.push(read(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((under, layer) => over(layer, under), [255, 255, 255]);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((n) => n / 255).map((n) => (n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const pale = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !node.checkVisibility() || node.closest("svg, .visually-hidden, .skip, noscript")) continue;
    const style = getComputedStyle(node);
    const ground = behind(node);
    const [a, b] = [light(over(read(style.color), ground)), light(ground)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) pale.push(`${texts.currentNode.data.trim()}: ${ratio.toFixed(2)}`);
  }
  return pale;
})()"#;

fn text(value: &Value) -> &str {
    value["value"].as_str().unwrap_or_default()
}

#[test]
fn controls_have_names_headings_are_in_order_and_contrast_is_sufficient() {
    let server = serve("");
    for user in ["a", "b", "c"] {
        while ask(&server, "203.0.113.7", user, "/login") {}
        ask(&server, "203.0.113.7", user, "/search");
    }
    let mut page = open(&server, "overview");
    for view in VIEWS {
        page.click(&format!("nav a[href='#{view}']"));
        page.until(&format!("!document.getElementById('view-{view}').hidden"));
        match view {
            "overview" => page.until("document.querySelector('#short-denied .number')"),
            "shadow" => page.until("document.querySelector('#shadow .pair')"),
            "keys" => page.until("document.querySelector('#most-denied .button')"),
            "try" => {
                page.fill("#try-fields [data-name=path]", "/login");
                page.fill("#try-fields [data-name=ip]", "203.0.113.7");
                page.click("#try button[type=submit]");
                page.until("document.querySelector('#try-result .verdict')");
            }
            "playground" => page.until("document.querySelector('#limit-rows .allowed')"),
            _ => {}
        }
        let tree = page.call("Accessibility.getFullAXTree", serde_json::json!({}));
        let mut level = 0;
        let mut controls = 0;
        for node in tree["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|node| node["ignored"] != true)
        {
            let (role, name) = (text(&node["role"]), text(&node["name"]));
            assert!(
                !CONTROLS.contains(&role) || !name.is_empty(),
                "a {role} of {view} has no name: {node}"
            );
            controls += usize::from(CONTROLS.contains(&role));
            if role == "heading" {
                let properties = node["properties"].as_array().unwrap();
                let next = properties
                    .iter()
                    .find(|one| one["name"] == "level")
                    .unwrap()["value"]["value"]
                    .as_u64();
                let next = next.unwrap();
                assert!(
                    next <= level + 1,
                    "{name} of {view} is a heading {next} after one of {level}"
                );
                assert_eq!(
                    next == 1,
                    level == 0,
                    "{view} has one heading 1, which comes first"
                );
                level = next;
            }
        }
        assert!(controls > 8 && level > 0, "{view}");
        for theme in ["light", "dark"] {
            // No transition between the colours.
            page.prefers(&[("color-scheme", theme), ("reduced-motion", "reduce")]);
            assert_eq!(
                page.eval(LOW_CONTRAST),
                serde_json::json!([]),
                "{view}, {theme}"
            );
        }
    }
    page.no_problems();
}
