//! `sterna doctor show` and `compare`: files with the evidence of examinations, and the reports from them.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::Serialize;
use sterna_doctor::bundle::{BYTES_MAX, Bundle, Proof, SignedBundle};
use sterna_doctor::perfsonar::export::documents;
use sterna_doctor::report::compare::Comparison;
use sterna_doctor::report::html::Page;
use sterna_doctor::report::{Report, figures, text};
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use crate::flags::{CompareFlags, ReportFiles, ShowFlags};
use crate::output::{print_line, say};

/// Report with its signatures, for programs.
#[derive(Serialize)]
struct Signed<'a> {
    #[serde(flatten)]
    report: &'a Report,
    signed: &'a Proof,
}

/// Comparison with the signatures of both bundles, for programs.
#[derive(Serialize)]
struct SignedComparison<'a> {
    #[serde(flatten)]
    comparison: &'a Comparison,
    signed: [&'a Proof; 2],
}

/// Shows the report of a bundle.
pub fn show(flags: &ShowFlags) -> Result<u8, Error> {
    let signed = read(&flags.file)?;
    if let Some(signer) = &flags.signer {
        signed.proof.require(signer).map_err(|e| of_file(&flags.file, e))?;
    }
    if !flags.json {
        say(&signature(&flags.file, &signed.proof));
    }
    if flags.pscheduler {
        return export(&flags.file, &signed);
    }
    show_report(&signed, &flags.files, flags.json)
}

/// Prints the documents of pScheduler, one a line.
fn export(path: &Path, signed: &SignedBundle) -> Result<u8, Error> {
    let documents = documents(&signed.bundle.evidence, &signed.bundle.about);
    if documents.is_empty() {
        let text = "no flow and no echoes with the addresses of both hosts: nothing to export";
        let error = Error::new(ErrorKind::NotFound, Scope::Client, Phase::Finalise, text);
        return Err(of_file(path, error));
    }
    documents.iter().try_for_each(|document| print_line(document.to_string().as_bytes()))?;
    Ok(0)
}

/// Compares two bundles.
pub fn compare(flags: &CompareFlags) -> Result<u8, Error> {
    let (before, after) = (read(&flags.before)?, read(&flags.after)?);
    let (old, new) = (&before.bundle, &after.bundle);
    let report = |bundle: &Bundle| Report::new(&bundle.evidence, &bundle.about);
    let comparison = Comparison::new((&report(old), &old.evidence), (&report(new), &new.evidence));
    if flags.json {
        return print_json(&SignedComparison { comparison: &comparison, signed: [&before.proof, &after.proof] });
    }
    for (path, signed) in [(&flags.before, &before), (&flags.after, &after)] {
        say(&signature(path, &signed.proof));
    }
    comparison.lines().iter().try_for_each(|line| print_line(line.as_bytes()))?;
    Ok(0)
}

/// Writes the files of a report and prints it.
pub fn show_report(signed: &SignedBundle, files: &ReportFiles, json: bool) -> Result<u8, Error> {
    let SignedBundle { bundle: Bundle { about, evidence }, proof } = signed;
    let report = Report::new(evidence, about);
    if let Some(path) = &files.html {
        write(path, Page { report: &report, evidence, about, proof }.render().as_bytes())?;
    }
    if let Some(directory) = &files.svg {
        fs::create_dir_all(directory).map_err(|e| not_written(directory, e))?;
        for figure in figures::figures(evidence, &report) {
            write(&directory.join(format!("{}.svg", figure.name)), figure.file().as_bytes())?;
        }
    }
    if json {
        return print_json(&Signed { report: &report, signed: proof });
    }
    text::lines(&report).iter().try_for_each(|line| print_line(line.as_bytes()))?;
    Ok(0)
}

/// Writes a file. Errors: `Io`.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    fs::write(path, bytes).map_err(|e| not_written(path, e))
}

fn not_written(path: &Path, error: std::io::Error) -> Error {
    let text = format!("write {}", path.display());
    Error::new(ErrorKind::Io, Scope::Client, Phase::Finalise, text).caused_by(error)
}

pub fn print_json(value: &impl Serialize) -> Result<u8, Error> {
    let line = serde_json::to_vec(value).map_err(|e| {
        Error::new(ErrorKind::Internal, Scope::Client, Phase::Finalise, "write the report as JSON").caused_by(e)
    })?;
    print_line(&line)?;
    Ok(0)
}

/// Reads a bundle and verifies it.
fn read(path: &Path) -> Result<SignedBundle, Error> {
    Bundle::read(&read_bytes(path)?).map_err(|e| of_file(path, e))
}

/// Reads the bytes of a bundle, one more than the maximum at most.
pub fn read_bytes(path: &Path) -> Result<Vec<u8>, Error> {
    let bounded = || {
        let mut bytes = Vec::new();
        File::open(path)?.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map(|_| bytes)
    };
    bounded().map_err(|e| {
        let text = format!("read the bundle {}", path.display());
        Error::new(ErrorKind::Io, Scope::Client, Phase::Prepare, text).caused_by(e)
    })
}

/// Adds the name of the file to an error about its content.
pub fn of_file(path: &Path, error: Error) -> Error {
    let (kind, scope, phase) = (error.kind, error.scope, error.phase);
    Error::new(kind, scope, phase, format!("read the bundle {}", path.display())).caused_by(error)
}

/// Returns who signed a bundle, in words.
pub fn signature(path: &Path, proof: &Proof) -> String {
    match proof.signers.as_slice() {
        [] => format!("{}: not signed, so anybody may have changed it", path.display()),
        signers => format!("{}: unchanged since it was signed by {}", path.display(), signers.join(" and ")),
    }
}
