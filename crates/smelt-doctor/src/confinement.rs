//! Checks by what the kernel can hold stages to what they declare that they write.

use crate::finding::{Finding, Severity};
use crate::measure::Measured;

/// `confinement`: the way that was tried with success, where any was tried.
pub(crate) fn check(measured: &Measured) -> Option<Finding> {
    const ID: &str = "confinement";
    let way = measured.confined_by.as_deref()?;
    let held = |title: &str| {
        match &measured.unheld[..] {
        [] => Finding::new(Severity::Ok, ID, title),
        unheld => Finding::new(Severity::Note, ID, format!("{title}; {}", unheld.join("; "))).because(
            "A stage can then reach smelt itself: where signals are not held, it can stop smelt and the shim that \
             leads it, and with both its time limit.  Run what you do not trust as another user or in a container.",
        ),
    }
    };
    Some(match way {
        "landlock" => held("stages are confined by Landlock"),
        "mounts" => held("stages are confined by mount name spaces, for root"),
        "user-mounts" => held("stages are confined by mount name spaces in user name spaces"),
        _ => Finding::new(Severity::Warning, ID, "stages are not confined")
            .seen("no Landlock as of Linux 5.19, no right to mount, no user name spaces")
            .because(
                "A stage that writes where it should not is then neither stopped nor noticed, and \
                 may spoil what is sealed. Run smelt as root, or allow user name spaces; \
                 `smelt run --require-confinement` refuses until then.",
            ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_not_held_is_told() {
        let check = |way: Option<&str>| {
            let way = way.map(str::to_owned);
            let measured = Measured { confined_by: way, ..Measured::default() };
            check(&measured).map(|finding| finding.severity)
        };
        assert_eq!(check(None), None);
        assert_eq!(check(Some("none")), Some(Severity::Warning));
        for way in ["landlock", "mounts", "user-mounts"] {
            assert_eq!(check(Some(way)), Some(Severity::Ok));
        }
    }

    #[test]
    fn what_a_way_leaves_to_stages_is_said() {
        let confined_by = Some("mounts".to_owned());
        let unheld = vec!["signals are not held".to_owned()];
        let found = check(&Measured { confined_by, unheld, ..Measured::default() }).unwrap();
        assert_eq!(found.severity, Severity::Note);
        assert!(found.title.ends_with("for root; signals are not held"), "{}", found.title);
    }
}
