//! Makes the plots and the measured tables of the docs: `cargo run --release -p ratekeeper-plots`.

use std::{fs, io};

fn main() -> io::Result<()> {
    println!("{}", ratekeeper_plots::report());
    for (path, text) in ratekeeper_plots::files()? {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let same = fs::read_to_string(&path).is_ok_and(|there| there == text);
        fs::write(&path, text)?;
        println!(
            "{} {}",
            if same { "as it was" } else { "written  " },
            path.display()
        );
    }
    Ok(())
}
