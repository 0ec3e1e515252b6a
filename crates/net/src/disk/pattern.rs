//! Shell wildcards for names of arbitrary bytes.
//!
//! Matches one name against `*`, `?`, `[a-z]`, `[!a-z]` and `\`, as a shell does. Refuses to cross a `/`, so `**` is
//! the same as `*`; or match a leading dot with a wildcard.

/// Returns true if `pattern` contains a character with a special meaning in patterns.
pub(crate) fn has_wildcards(pattern: &[u8]) -> bool {
    pattern.iter().any(|byte| b"*?[\\".contains(byte))
}

/// Returns true if a name of a source path means `name`: literally, or by its wildcards.
pub(crate) fn is_meant(wanted: &[u8], name: &[u8]) -> bool {
    wanted == name || matches(wanted, name)
}

/// Returns true if `name` matches `pattern`, as in a shell.
///
/// Cost: O(pattern × name); both have at most 255 bytes.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    if name.first() == Some(&b'.') && pattern.first() != Some(&b'.') {
        return false;
    }
    let (mut p, mut n) = (0, 0);
    // Position to continue from if the text behind the last `*` does not match. That `*` then takes one more character.
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() || p < pattern.len() {
        if pattern.get(p) == Some(&b'*') {
            retry = Some((p, n));
            p += 1;
            continue;
        }
        if let Some((after, taken)) = match_one(&pattern[p..], &name[n..]) {
            p += after;
            n += taken;
            continue;
        }
        match retry {
            Some((star, from)) if from < name.len() => {
                n = from + character(&name[from..]).1;
                retry = Some((star, n));
                p = star + 1;
            }
            _ => return false,
        }
    }
    true
}

/// Matches one character of `name` against one element of `pattern`. Returns the number of bytes used of each.
fn match_one(pattern: &[u8], name: &[u8]) -> Option<(usize, usize)> {
    if name.is_empty() || pattern.is_empty() {
        return None;
    }
    let (found, taken) = character(name);
    match pattern[0] {
        b'?' => return Some((1, taken)),
        b'[' => {
            if let Some((wanted, used)) = match_set(pattern, found) {
                return wanted.then_some((used, taken));
            }
        }
        b'\\' if pattern.len() > 1 => {
            let (escaped, used) = character(&pattern[1..]);
            return (escaped == found).then_some((1 + used, taken));
        }
        _ => {}
    }
    let (literal, used) = character(pattern);
    (literal == found).then_some((used, taken))
}

/// Checks if `found` is in the set at the start of `pattern`, and returns the length of the set too. `None` if the set
/// has no end, so that its `[` is literal.
fn match_set(pattern: &[u8], found: u32) -> Option<(bool, usize)> {
    let mut at = 1;
    let is_negated = matches!(pattern.get(at), Some(b'!' | b'^'));
    at += usize::from(is_negated);
    let first = at;
    let mut is_in = false;
    loop {
        match *pattern.get(at)? {
            b']' if at > first => return Some((is_in != is_negated, at + 1)),
            _ => {
                let (low, used) = character(&pattern[at..]);
                at += used;
                let mut high = low;
                if pattern.get(at) == Some(&b'-') && pattern.get(at + 1).is_some_and(|&next| next != b']') {
                    let (end, used) = character(&pattern[at + 1..]);
                    high = end;
                    at += 1 + used;
                }
                is_in |= (low..=high).contains(&found);
            }
        }
    }
}

/// Returns the first character of `bytes` and its length. A byte that is not UTF-8 counts as a character beyond
/// Unicode. Range: `bytes` is not empty.
fn character(bytes: &[u8]) -> (u32, usize) {
    for length in 1..=bytes.len().min(4) {
        if let Ok(text) = std::str::from_utf8(&bytes[..length])
            && let Some(c) = text.chars().next()
        {
            return (u32::from(c), length);
        }
    }
    (0x11_0000 + u32::from(bytes[0]), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_as_in_a_shell() {
        let yes: &[(&[u8], &[u8])] = &[
            (b"*", b"a"),
            (b"*", b""),
            (b"*.h5", b"a.h5"),
            (b"a*b*c", b"a-b-b-c"),
            (b"a**c", b"ac"),
            (b"?.h5", "é.h5".as_bytes()),
            (b"?", b"\xff"),
            (b"[a-c]x", b"bx"),
            (b"[!a-c]x", b"dx"),
            (b"[^a]x", b"bx"),
            (b"[]]", b"]"),
            (b"[a-]", b"-"),
            ("[α-ω]".as_bytes(), "β".as_bytes()),
            (b"a[b", b"a[b"),
            (b"a\\*b", b"a*b"),
            (b".*", b".hidden"),
            (b"\xff*", b"\xff\xfe"),
        ];
        for (pattern, name) in yes {
            assert!(matches(pattern, name), "{} {}", pattern.escape_ascii(), name.escape_ascii());
        }
        let no: &[(&[u8], &[u8])] = &[
            (b"*", b".hidden"),
            (b"?hidden", b".hidden"),
            (b"*.h5", b"a.h4"),
            (b"a", b"ab"),
            (b"ab", b"a"),
            (b"[a-c]", b"d"),
            (b"[!a]", b"a"),
            (b"a\\*b", b"axb"),
            (b"?", b""),
            (b"?", b"ab"),
        ];
        for (pattern, name) in no {
            assert!(!matches(pattern, name), "{} {}", pattern.escape_ascii(), name.escape_ascii());
        }
    }

    #[test]
    fn a_hostile_pattern_ends_soon() {
        // Takes exponential time in a matcher that backtracks into every `*`.
        let pattern = b"*a".repeat(60);
        assert!(!matches(&pattern, &[b'a'; 59]));
        assert!(!matches(&[&pattern[..], b"b"].concat(), &[b'a'; 255]));
    }
}
