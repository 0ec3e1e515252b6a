//! Strict reader of DER (X.690), and the encoding of one element.
//!
//! Reads tags of one byte and definite lengths in their shortest form. Refuses bytes that are left over: der-parser
//! accepts long forms and drops such bytes, and a signature must cover all that counts. Bytes come in as slices.

/// Tag of a BIT STRING.
pub(super) const BIT_STRING: u8 = 0x03;
/// Tag of an INTEGER.
pub(super) const INTEGER: u8 = 0x02;
/// Tag of an OCTET STRING.
pub(super) const OCTET_STRING: u8 = 0x04;
/// Tag of an OBJECT IDENTIFIER.
pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;
/// Tag of a UTF8String.
pub(super) const UTF8_STRING: u8 = 0x0c;
/// Tag of a GeneralizedTime.
pub(super) const GENERALIZED_TIME: u8 = 0x18;
/// Tag of a BOOLEAN.
pub(super) const BOOLEAN: u8 = 0x01;
/// Tag of a SEQUENCE.
pub(super) const SEQUENCE: u8 = 0x30;
/// Tag of a SET.
pub(super) const SET: u8 = 0x31;

/// Most bytes of a length. Reason: 16 MiB are more than a TLS handshake can carry.
const LENGTH_BYTES_MAX: usize = 3;

/// Bits of a tag that announce more bytes of the tag.
const LONG_TAG: u8 = 0x1f;

/// Input that is not the expected DER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Element: tag, length and content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element<'a> {
    /// First byte.
    pub tag: u8,
    /// All bytes, with tag and length.
    pub raw: &'a [u8],
    /// Bytes after the length.
    pub content: &'a [u8],
}

impl<'a> Element<'a> {
    /// Returns a reader of the content.
    pub fn reader(&self) -> Reader<'a> {
        Reader::new(self.content)
    }

    /// Reads an element that has this tag and fills the input.
    pub fn only(tag: u8, input: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(input);
        let element = reader.read(tag)?;
        reader.finish()?;
        Ok(element)
    }
}

/// Reader of adjacent elements.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a reader.
    pub fn new(input: &'a [u8]) -> Self {
        Self { rest: input }
    }

    /// Reads the next element.
    pub fn element(&mut self) -> Result<Element<'a>, Malformed> {
        let (tag, after_tag) = self.rest.split_first().ok_or(Malformed)?;
        if tag & LONG_TAG == LONG_TAG {
            return Err(Malformed);
        }
        let (first, mut after_length) = after_tag.split_first().ok_or(Malformed)?;
        let mut length_bytes = usize::from(*first);
        if *first >= 0x80 {
            let count = usize::from(*first & 0x7f);
            let (length, rest) = after_length.split_at_checked(count).ok_or(Malformed)?;
            length_bytes = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            let is_shortest = length_bytes >= 0x80 && length.first().is_some_and(|byte| *byte != 0);
            if count > LENGTH_BYTES_MAX || !is_shortest {
                return Err(Malformed);
            }
            after_length = rest;
        }
        let (content, rest) = after_length.split_at_checked(length_bytes).ok_or(Malformed)?;
        let raw = &self.rest[..self.rest.len() - rest.len()];
        self.rest = rest;
        Ok(Element { tag: *tag, raw, content })
    }

    /// Reads the next element, which must have this tag.
    pub fn read(&mut self, tag: u8) -> Result<Element<'a>, Malformed> {
        self.element().and_then(|element| if element.tag == tag { Ok(element) } else { Err(Malformed) })
    }

    /// Reads the next element if it has this tag.
    pub fn optional(&mut self, tag: u8) -> Result<Option<Element<'a>>, Malformed> {
        if self.rest.first() == Some(&tag) { self.element().map(Some) } else { Ok(None) }
    }

    /// Returns true if all input is read.
    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Ends the reading. Errors: input is left.
    pub fn finish(self) -> Result<(), Malformed> {
        if self.is_at_end() { Ok(()) } else { Err(Malformed) }
    }

    /// Reads all elements that are left; each must have this tag.
    pub fn all(mut self, tag: u8) -> Result<Vec<Element<'a>>, Malformed> {
        let mut elements = Vec::new();
        while !self.is_at_end() {
            elements.push(self.read(tag)?);
        }
        Ok(elements)
    }
}

/// Returns the bits of a BIT STRING of whole bytes, as signatures are.
pub(super) fn whole_bytes<'a>(bits: &Element<'a>) -> Result<&'a [u8], Malformed> {
    match bits.content.split_first() {
        Some((0, bytes)) => Ok(bytes),
        _ => Err(Malformed),
    }
}

/// Returns the encoding of an element.
pub(super) fn encode(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let significant = &length[length.iter().take_while(|byte| **byte == 0).count()..];
    let mut encoded = vec![tag];
    match significant {
        [] => encoded.push(0),
        [short] if *short < 0x80 => encoded.push(*short),
        // A length in memory has at most 8 bytes.
        long => encoded.extend(std::iter::once(0x80 | long.len() as u8).chain(long.iter().copied())),
    }
    encoded.extend_from_slice(content);
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_reads_back_at_each_form_of_the_length() {
        for length in [0, 1, 0x7f, 0x80, 0xff, 0x100, 0xffff, 0x1_0000] {
            let content = vec![7; length];
            let encoded = encode(OCTET_STRING, &content);
            let element = Element::only(OCTET_STRING, &encoded).unwrap();
            assert_eq!((element.content, element.raw), (&content[..], &encoded[..]), "{length}");
            assert_eq!(Element::only(SEQUENCE, &encoded), Err(Malformed));
            assert_eq!(Element::only(OCTET_STRING, &encoded[..encoded.len() - 1]), Err(Malformed));
        }
    }

    #[test]
    fn forms_that_der_forbids_are_malformed() {
        for input in [
            &[][..],
            &[4],
            &[4, 0x80, 0, 0],          // indefinite length
            &[4, 0x81, 1, 9],          // one byte in the long form
            &[4, 0x82, 0, 0x80],       // a leading zero
            &[4, 0x84, 0, 0, 0, 1, 9], // more bytes than the limit
            &[0x1f, 1, 1, 9],          // a tag of several bytes
            &[4, 1, 9, 9],             // bytes left over
            &[4, 0xff, 1, 2, 3],
        ] {
            assert_eq!(Element::only(OCTET_STRING, input), Err(Malformed), "{input:?}");
        }
    }

    #[test]
    fn a_bit_string_has_whole_bytes() {
        let bits = |content: &'static [u8]| Element { tag: BIT_STRING, raw: content, content };
        assert_eq!(whole_bytes(&bits(&[0, 1, 2])), Ok(&[1, 2][..]));
        assert_eq!(whole_bytes(&bits(&[1, 2])), Err(Malformed));
        assert_eq!(whole_bytes(&bits(&[])), Err(Malformed));
    }
}
