//! The hash slots of keys.

/// A hash slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(u16);

/// The numbers that [`tag`] tries. Each slot is the slot of one of the first 150,000.
const TAGS: u32 = 1_000_000;

impl Slot {
    pub(super) const COUNT: u16 = 16_384;

    /// `None`: there is no such slot.
    pub(super) fn new(number: u16) -> Option<Self> {
        (number < Self::COUNT).then_some(Self(number))
    }

    /// The slot of a key.
    pub(super) fn of(key: &[u8]) -> Self {
        Self(crc16(hashed(key)) % Self::COUNT)
    }

    pub(super) const fn number(self) -> u16 {
        self.0
    }
}

/// A hash tag of one of these slots: the same one for all clients that know these slots. For a key that belongs to a
/// node and not to a lock.
pub(super) fn tag(is_one: impl Fn(Slot) -> bool) -> Option<String> {
    (0..TAGS).map(|number| number.to_string()).find(|tag| is_one(Slot::of(tag.as_bytes())))
}

/// The part of a key that decides the slot: what is between the first `{` and the next `}`, unless that is empty.
fn hashed(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let rest = &key[open + 1..];
    match rest.iter().position(|byte| *byte == b'}') {
        None | Some(0) => key,
        Some(close) => &rest[..close],
    }
}

/// CRC16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) ^ u16::from(*byte))])
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "it is below 256")]
        let mut crc = (index as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_of_a_key_is_the_one_that_a_server_says() {
        // What `CLUSTER KEYSLOT` of Redis 7.0 replied.
        for (key, slot) in [
            ("leasehold:epoch", 13_576),
            ("leasehold:{job}", 2_906),
            ("leasehold:{job}:q", 2_906),
            ("leasehold:{orders%2F%7B42%7D}", 5_247),
            ("123456789", 12_739),
            ("other", 11_361),
            ("{a}", 15_495),
            ("{b}", 3_300),
            // An empty tag is none, and only the first one counts.
            ("a{}b", 13_694),
            ("{}{x}", 3_257),
            ("foo{bar}{zap}", 5_061),
            ("foo{{bar}}zap", 4_015),
            ("48063", 100),
        ] {
            assert_eq!(Slot::of(key.as_bytes()).number(), slot, "{key}");
        }
        assert_eq!(Slot::of(b"a{b"), Slot(crc16(b"a{b") % Slot::COUNT));
        assert_eq!((Slot::new(16_383).map(Slot::number), Slot::new(16_384)), (Some(16_383), None));
    }

    #[test]
    fn every_slot_has_a_tag_and_a_node_with_many_slots_a_short_one() {
        let mut missing: Vec<_> = (0..Slot::COUNT).collect();
        let reached: std::collections::BTreeSet<_> =
            (0..150_000_u32).map(|number| Slot::of(number.to_string().as_bytes()).number()).collect();
        missing.retain(|slot| !reached.contains(slot));
        assert_eq!(missing, []);
        assert_eq!(tag(|slot| slot.number() == 100).map(|tag| Slot::of(tag.as_bytes())), Slot::new(100));
        for third in 0..3 {
            let is_own = |slot: Slot| slot.number() / 5_462 == third;
            let found = tag(is_own).unwrap();
            assert!(is_own(Slot::of(found.as_bytes())) && found.len() == 1, "{found}");
        }
        assert_eq!(tag(|_| false), None);
    }
}
