//! Settings of the kernel for networks: changes them, and restores the values from before.
//!
//! The old values are durable in a record of the state directory before the first change ([`apply`]). So a process that
//! is killed between two changes leaves everything that [`rollback`] needs. Several calls of [`apply`] keep the oldest
//! values, until a restart of the host makes them stale. Refuses to decide which values are right.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use crate::identity::files;

/// Change of a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingChange {
    /// Name without `net.`, such as `ipv4.tcp_rmem`.
    pub setting: String,
    /// Value before, exactly as the kernel shows it.
    pub before: String,
    /// Value after.
    pub after: String,
}

/// Result of [`apply`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// Settings that have another value now.
    pub changed: Vec<SettingChange>,
    /// Settings that cannot be changed here, with the reason.
    pub refused: Vec<(String, String)>,
}

/// Old values, as in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// Version of this format.
    version: u32,
    /// Start of the host; its network namespaces end with it.
    boot: String,
    /// Network namespace whose settings they are.
    namespace: u64,
    /// Changes, in their order.
    changes: Vec<SettingChange>,
    /// File that sets the values at the start of the host, and its content from before.
    persisted: Option<Persisted>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Persisted {
    path: PathBuf,
    /// `None`: there was no file.
    before: Option<String>,
}

/// Version of the record.
const VERSION: u32 = 1;

/// Name of the record in the state directory.
const FILE: &str = "host-settings";

/// Maximum size of the record and of a file with settings, in bytes. Reason: some tens of settings, of 100 bytes each.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Directory of the settings of networks.
const ROOT: &str = "/proc/sys/net";

/// Sets new values. `persist`: file that also gets them, in the form of sysctl.conf.
///
/// Settings that this process cannot write are left out and reported. If a later step fails, the changes of this call
/// are taken back.
///
/// Errors: `Denied` if no setting can be written; the record of another network namespace exists; a setting does not
/// take its value; the state directory or the file cannot be written.
pub fn apply(state: &Path, wanted: &[(String, String)], persist: Option<&Path>) -> Result<Applied, Error> {
    let mut applied = Applied::default();
    for (setting, after) in wanted {
        match readable_and_writable(setting) {
            Ok(before) if same(&before, after) => {}
            Ok(before) => {
                applied.changed.push(SettingChange { setting: setting.clone(), before, after: after.clone() });
            }
            Err(error) => applied.refused.push((setting.clone(), reason_of(&error))),
        }
    }
    if applied.changed.is_empty() && !applied.refused.is_empty() {
        let names: Vec<&str> = applied.refused.iter().map(|(name, _)| name.as_str()).collect();
        let text = format!("change net.{}: {}; run it as root", names.join(", net."), applied.refused[0].1);
        return Err(Error::new(ErrorKind::Denied, Scope::Client, Phase::Prepare, text));
    }
    if applied.changed.is_empty() && persist.is_none() {
        return Ok(applied);
    }
    files::create_state_dir(state)?;
    let earlier = read_record(state)?;
    let record = merged(earlier.clone(), &applied.changed, persist)?;
    write_record(state, &record)?;
    let done = applied
        .changed
        .iter()
        .try_for_each(|change| write_setting(&change.setting, &change.after))
        .and_then(|()| persist.map_or(Ok(()), |path| write_persisted(path, &persisted(&record, wanted, &applied))));
    done.map_err(|error| take_back(state, &applied.changed, earlier.as_ref(), record.persisted.as_ref(), error))?;
    Ok(applied)
}

/// Sets the values from before the first [`apply`] again. Returns the changes, each with its values swapped.
///
/// Errors: `NotFound` if there is no record; the record is of another network namespace; a value cannot be set. The
/// record then stays, and another call tries everything again.
pub fn rollback(state: &Path) -> Result<Vec<SettingChange>, Error> {
    let path = state.join(FILE);
    let Some(record) = read_record(state)? else {
        let text = format!("nothing to roll back: there is no {}; no settings were applied from there", path.display());
        return Err(Error::new(ErrorKind::NotFound, Scope::Client, Phase::Prepare, text));
    };
    let mut restored = Vec::new();
    let mut failure = None;
    for change in record.changes.iter().rev() {
        let now = read_setting(&change.setting).unwrap_or_default();
        match write_setting(&change.setting, &change.before) {
            Ok(()) => restored.push(SettingChange {
                setting: change.setting.clone(),
                before: now,
                after: change.before.clone(),
            }),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    if let Some(persisted) = &record.persisted {
        restore_persisted(persisted)?;
    }
    if let Some(error) = failure {
        let text = format!("{}; {} keeps the old values: run it again", error.text(), path.display());
        return Err(error.reworded(text));
    }
    remove(&path)?;
    Ok(restored)
}

/// Returns the record with further changes. The oldest values stay.
fn merged(earlier: Option<Record>, changes: &[SettingChange], persist: Option<&Path>) -> Result<Record, Error> {
    let mut record = match earlier {
        Some(record) => record,
        None => {
            let (boot, namespace) = (boot(), namespace());
            Record { version: VERSION, boot, namespace, changes: Vec::new(), persisted: None }
        }
    };
    for change in changes {
        match record.changes.iter_mut().find(|old| old.setting == change.setting) {
            Some(old) => old.after.clone_from(&change.after),
            None => record.changes.push(change.clone()),
        }
    }
    if let Some(path) = persist {
        if record.persisted.as_ref().is_some_and(|persisted| persisted.path != path) {
            let text = "the settings are in another file already: roll back first".to_owned();
            return Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
        }
        if record.persisted.is_none() {
            let before = files::read_text(path, FILE_BYTES_MAX)?;
            record.persisted = Some(Persisted { path: path.to_owned(), before });
        }
    }
    Ok(record)
}

/// Takes the changes of a call back. Returns the error to report.
fn take_back(
    state: &Path,
    changes: &[SettingChange],
    earlier: Option<&Record>,
    persisted: Option<&Persisted>,
    error: Error,
) -> Error {
    let back = changes.iter().rev().try_for_each(|change| write_setting(&change.setting, &change.before));
    let was_persisted = earlier.is_some_and(|record| record.persisted.is_some());
    let back = back.and_then(|()| match persisted.filter(|_| !was_persisted) {
        Some(persisted) => restore_persisted(persisted),
        None => Ok(()),
    });
    let back = back.and_then(|()| match earlier {
        Some(record) => write_record(state, record),
        None => remove(&state.join(FILE)),
    });
    let rest = match back {
        Ok(()) => "; the values from before are set again".to_owned(),
        Err(other) => format!("; and then: {}; --rollback sets the values from before", other.text()),
    };
    let text = format!("{}{rest}", error.text());
    error.reworded(text)
}

/// Returns the path of a setting. Errors: the name is not one of a network setting.
fn path_of(setting: &str) -> io::Result<PathBuf> {
    let is_name = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    match setting.split_once('.') {
        Some((group @ ("core" | "ipv4"), name)) if is_name(name) => Ok(Path::new(ROOT).join(group).join(name)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not the name of a network setting")),
    }
}

fn read_setting(setting: &str) -> io::Result<String> {
    let text = fs::read_to_string(path_of(setting)?)?;
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

/// Returns the value of a setting that this process can write. Opening it changes nothing.
fn readable_and_writable(setting: &str) -> io::Result<String> {
    OpenOptions::new().write(true).open(path_of(setting)?)?;
    read_setting(setting)
}

/// Writes a value, and checks that the kernel has it.
fn write_setting(setting: &str, value: &str) -> Result<(), Error> {
    let failed = |text: String| Error::new(ErrorKind::Io, Scope::Client, Phase::Transfer, text);
    let set = || -> io::Result<String> {
        // One write: the kernel parses each write as a whole value.
        OpenOptions::new().write(true).open(path_of(setting)?)?.write_all(value.as_bytes())?;
        read_setting(setting)
    };
    let now = set().map_err(|e| failed(format!("set net.{setting} to {value}: {}", reason_of(&e))).caused_by(e))?;
    match same(&now, value) {
        true => Ok(()),
        false => Err(failed(format!("set net.{setting} to {value}: the kernel made it {now}"))),
    }
}

/// Returns true if two values are the same: the kernel writes tabs between numbers.
fn same(one: &str, other: &str) -> bool {
    one.split_whitespace().eq(other.split_whitespace())
}

fn reason_of(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "this process may not write it".to_owned(),
        io::ErrorKind::NotFound => "this kernel or network namespace does not have it".to_owned(),
        io::ErrorKind::ReadOnlyFilesystem => "the file system of settings is read-only".to_owned(),
        _ => error.to_string(),
    }
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn namespace() -> u64 {
    fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino())
}

/// Reads the record, as it holds for the host that runs now; `None` if there is none. Errors: it is damaged, or of
/// another network namespace.
fn read_record(state: &Path) -> Result<Option<Record>, Error> {
    let path = state.join(FILE);
    let Some(text) = files::read_text(&path, FILE_BYTES_MAX)? else { return Ok(None) };
    let record: Record = serde_json::from_str(&text).map_err(|e| {
        let text = format!("{} is damaged; set the values by hand and delete it", path.display());
        Error::new(ErrorKind::Corrupt, Scope::Client, Phase::Prepare, text).caused_by(e)
    })?;
    if record.version != VERSION {
        let text = format!("{} is of another release (version {})", path.display(), record.version);
        return Err(Error::new(ErrorKind::Corrupt, Scope::Client, Phase::Prepare, text));
    }
    // After a restart, the namespace is gone, and its number means nothing.
    if record.boot == boot() && record.namespace != namespace() {
        let text = format!(
            "{} has the settings of another network namespace: run it there, or give another --state",
            path.display()
        );
        return Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
    }
    Ok(Some(renewed(record)))
}

/// Returns the record as it holds after a restart of the host, if there was one. The restart has undone the changes,
/// except those that the file with settings makes again. Their oldest values stay; where the kernel has another value
/// than that of the file, the old value is stale and is read again.
fn renewed(record: Record) -> Record {
    let (boot, namespace) = (boot(), namespace());
    if record.boot == boot {
        return record;
    }
    let is_persisted = record.persisted.is_some();
    let made_again = |change: SettingChange| match read_setting(&change.setting) {
        _ if !is_persisted => None,
        Ok(now) if !same(&now, &change.after) => Some(SettingChange { before: now, ..change }),
        _ => Some(change),
    };
    let changes = record.changes.into_iter().filter_map(made_again).collect();
    Record { boot, namespace, changes, ..record }
}

fn write_record(state: &Path, record: &Record) -> Result<(), Error> {
    let text = serde_json::to_vec_pretty(record)
        .map_err(|e| Error::new(ErrorKind::Internal, Scope::Client, Phase::Prepare, "write old values").caused_by(e))?;
    files::replace(&state.join(FILE), &text)
}

/// First line of a file with settings.
const HEADING: &str = "# Written by `sterna doctor host --apply`; `sterna doctor host --rollback` restores.\n";

/// Returns the values that a file gets: those of earlier calls, and those wanted now that can be set here.
fn persisted<'a>(record: &'a Record, wanted: &'a [(String, String)], applied: &Applied) -> BTreeMap<&'a str, &'a str> {
    let earlier = record.changes.iter().map(|change| (change.setting.as_str(), change.after.as_str()));
    let is_refused = |setting: &String| applied.refused.iter().any(|(name, _)| name == setting);
    let now = wanted.iter().filter(|(setting, _)| !is_refused(setting));
    earlier.chain(now.map(|(setting, value)| (setting.as_str(), value.as_str()))).collect()
}

fn write_persisted(path: &Path, values: &BTreeMap<&str, &str>) -> Result<(), Error> {
    let mut text = HEADING.to_owned();
    for (setting, value) in values {
        text.push_str(&format!("net.{setting} = {value}\n"));
    }
    replace_readable(path, &text)
}

fn restore_persisted(persisted: &Persisted) -> Result<(), Error> {
    match &persisted.before {
        Some(text) => replace_readable(&persisted.path, text),
        None => remove(&persisted.path),
    }
}

/// Replaces a file that every user may read, as files of settings are.
fn replace_readable(path: &Path, text: &str) -> Result<(), Error> {
    files::replace(path, text.as_bytes())?;
    fs::set_permissions(path, Permissions::from_mode(0o644)).map_err(|e| {
        let text = format!("make {} readable", path.display());
        Error::new(ErrorKind::Io, Scope::Client, Phase::Finalise, text).caused_by(e)
    })
}

/// Removes a file durably, if it is there.
fn remove(path: &Path) -> Result<(), Error> {
    let removed = match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.and_then(|()| files::sync_dir_of(path)),
    };
    removed.map_err(|e| {
        let text = format!("remove {}", path.display());
        Error::new(ErrorKind::Io, Scope::Client, Phase::Finalise, text).caused_by(e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(setting: &str, before: &str, after: &str) -> SettingChange {
        SettingChange { setting: setting.to_owned(), before: before.to_owned(), after: after.to_owned() }
    }

    #[test]
    fn the_oldest_values_stay_over_several_changes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("90.conf");
        fs::write(&file, "mine\n").unwrap();
        let first = merged(None, &[change("ipv4.tcp_sack", "0", "1")], Some(&file)).unwrap();
        fs::write(&file, "ours\n").unwrap();
        let changes = [change("ipv4.tcp_sack", "1", "2"), change("ipv4.tcp_ecn", "2", "1")];
        let second = merged(Some(first), &changes, Some(&file)).unwrap();
        assert_eq!(second.changes, [change("ipv4.tcp_sack", "0", "2"), change("ipv4.tcp_ecn", "2", "1")]);
        assert_eq!(second.persisted.as_ref().unwrap().before.as_deref(), Some("mine\n"));
        let other = merged(Some(second.clone()), &[], Some(Path::new("/other"))).unwrap_err();
        assert!(other.text().contains("roll back first"), "{}", other.text());
        write_record(dir.path(), &second).unwrap();
        assert_eq!(read_record(dir.path()).unwrap(), Some(second));
    }

    #[test]
    fn old_values_from_before_a_restart_are_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let (file, setting) = (dir.path().join("90.conf"), "ipv4.tcp_sack");
        let now = read_setting(setting).unwrap();
        let of_earlier_boot = |after: &str, persist: Option<&Path>| {
            let record = merged(None, &[change(setting, "stale", after)], persist).unwrap();
            let record = Record { boot: "another".to_owned(), namespace: 1, ..record };
            write_record(dir.path(), &record).unwrap();
            read_record(dir.path()).unwrap().unwrap()
        };
        // The restart has undone the change. The next one begins with the value that the kernel has now.
        for record in [of_earlier_boot("7", None), of_earlier_boot(&now, None)] {
            assert_eq!((&record.boot, record.namespace, &record.changes[..]), (&boot(), namespace(), &[][..]));
            let record = merged(Some(record), &[change(setting, &now, "0")], None).unwrap();
            assert_eq!(record.changes, [change(setting, &now, "0")]);
        }
        // The file has made the change again: its oldest value stays, unless somebody has set another value since.
        let record = of_earlier_boot(&now, Some(&file));
        assert_eq!((&record.boot, record.namespace), (&boot(), namespace()));
        assert_eq!(record.changes, [change(setting, "stale", &now)]);
        assert_eq!(of_earlier_boot("7", Some(&file)).changes, [change(setting, &now, "7")]);
        // A rollback sets no stale value.
        of_earlier_boot("7", None);
        assert_eq!((rollback(dir.path()).unwrap(), read_setting(setting).unwrap()), (vec![], now));
    }

    #[test]
    fn names_that_leave_the_settings_and_damaged_records_are_refused() {
        for name in ["", "ipv4", "ipv4.", "kernel.panic", "ipv4.../../../x", "core.a/b", "ipv4.A", "ipv4.conf.all"] {
            assert!(path_of(name).is_err(), "{name}");
        }
        let dir = tempfile::tempdir().unwrap();
        assert!(rollback(dir.path()).unwrap_err().text().contains("nothing to roll back"));
        let record = merged(None, &[], None).unwrap();
        for (text, expected) in [
            ("{".to_owned(), "is damaged"),
            (serde_json::to_string(&Record { version: 9, ..record.clone() }).unwrap(), "another release"),
            (serde_json::to_string(&Record { namespace: 1, ..record }).unwrap(), "another network namespace"),
        ] {
            fs::write(dir.path().join(FILE), text).unwrap();
            let error = rollback(dir.path()).unwrap_err();
            assert!(error.text().contains(expected), "{}", error.text());
        }
    }
}
