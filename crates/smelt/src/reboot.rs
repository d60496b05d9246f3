//! Reboots the board for a stage whose ladder asks for it, and has the run go on afterwards.
//!
//! A systemd unit in the store runs `smelt resume --after-boot` at the next boot and is forgotten
//! then.  Where there is no systemd the user is told what to do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use smelt_plan::Digest;

use crate::console::tell;

/// The directory of the unit in the store.
const DIR: &str = "resume";

/// Leaves the unit and reboots; returns when that has begun, or cannot be done.
pub(crate) fn reboot(root: &Path) {
    let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
    if let Err(why) = begin(&root) {
        tell(format_args!("smelt: cannot reboot this board: {why}"));
        tell(format_args!("smelt: reboot it yourself, and then: {}", line(&root)));
        tell(format_args!(
            "smelt: or have cron do the latter (crontab -e): @reboot {}",
            line(&root)
        ));
    }
}

fn begin(root: &Path) -> Result<(), String> {
    let unit = unit_path(root);
    let folder = unit.parent().unwrap_or(root);
    let fail = |error: std::io::Error| format!("cannot write {}: {error}", unit.display());
    fs::create_dir_all(folder).map_err(fail)?;
    let exe = std::env::current_exe().map_err(|error| error.to_string())?;
    fs::write(&unit, unit_text(&exe, root)).map_err(fail)?;
    fs::File::open(&unit).and_then(|file| file.sync_all()).map_err(fail)?;
    systemctl(&["enable", &unit.to_string_lossy()])?;
    tell(format_args!("smelt: rebooting; {} goes on afterwards", unit.display()));
    systemctl(&["reboot"])
}

/// What a person types, or cron.
fn line(root: &Path) -> String {
    format!("SMELT_CACHE={} smelt resume --after-boot", root.display())
}

/// Two stores on one board have a unit each.
fn unit_path(root: &Path) -> PathBuf {
    let name = Digest::of(root.as_os_str().as_encoded_bytes()).to_string();
    root.join(DIR).join(format!("smelt-resume-{}.service", &name[..8]))
}

fn unit_text(exe: &Path, root: &Path) -> String {
    // In units `%` begins a specifier.
    let text = |path: &Path| path.display().to_string().replace('%', "%%");
    let (exe, root) = (text(exe), text(root));
    format!(
        "[Unit]\nDescription=go on with smelt's builds after a reboot\n\
         RequiresMountsFor=\"{root}\"\nAfter=network-online.target\nWants=network-online.target\n\n\
         [Service]\nType=oneshot\nEnvironment=\"SMELT_CACHE={root}\"\n\
         ExecStart=\"{exe}\" resume --after-boot\n\n\
         [Install]\nWantedBy=multi-user.target\n"
    )
}

/// What was left for the boot is done.
pub(crate) fn forget(root: &Path) {
    let unit = unit_path(&std::path::absolute(root).unwrap_or_else(|_| root.to_owned()));
    let Some(name) = unit.file_name().filter(|_| unit.exists()) else { return };
    if let Err(why) = systemctl(&["disable", &name.to_string_lossy()]) {
        tell(format_args!("smelt: {} stays enabled: {why}", unit.display()));
        return;
    }
    let _ = fs::remove_file(&unit);
}

fn systemctl(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("systemctl")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot start systemctl: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it failed");
    Err(format!("systemctl {}: {}", arguments.join(" "), line.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_says_what_to_run_and_where_the_store_is() {
        let text = unit_text(Path::new("/opt/100% smelt"), Path::new("/data/cache"));
        for line in [
            "ExecStart=\"/opt/100%% smelt\" resume --after-boot",
            "Environment=\"SMELT_CACHE=/data/cache\"",
            "WantedBy=multi-user.target",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
        let name = |root: &str| unit_path(Path::new(root)).file_name().unwrap().to_owned();
        assert_ne!(name("/a"), name("/b"));
    }
}
