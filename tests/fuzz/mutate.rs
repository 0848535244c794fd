//! Changes of inputs, as fuzzers make them that know nothing of what is run.

use fastrand::Rng;

pub(crate) fn mutate(input: &mut Vec<u8>, other: &[u8], words: &[&str], random: &mut Rng) {
    let at = random.usize(..=input.len());
    let end = (at + 1 + random.usize(..16)).min(input.len());
    match random.u8(..10) {
        0 if at < input.len() => input[at] ^= 1 << random.u8(..8),
        1 if at < input.len() => input[at] = random.u8(..),
        2 => input.insert(at, random.u8(..)),
        3 => drop(input.drain(at..end)),
        4 => {
            let part = input[at..end].to_vec();
            drop(input.splice(at..at, part));
        }
        5 if !other.is_empty() => {
            let from = random.usize(..other.len());
            input.truncate(at);
            input.extend(&other[from..]);
        }
        6 => {
            let bytes: Vec<_> = (0..random.u8(1..12)).map(|_| random.u8(..)).collect();
            drop(input.splice(at..at, bytes));
        }
        7 if at < input.len() => {
            let edges = [0, 1, 0x7f, 0x80, 0xff, b'\n', b' ', b'0', b'9'];
            input[at] = edges[random.usize(..edges.len())];
        }
        _ if !words.is_empty() => {
            let word = words[random.usize(..words.len())];
            // Bytes above ASCII stand for themselves.
            let word: Vec<u8> = word.chars().flat_map(bytes).collect();
            drop(input.splice(at..at, word));
        }
        _ => input.push(random.u8(..)),
    }
}

fn bytes(c: char) -> Vec<u8> {
    match u8::try_from(c) {
        Ok(byte) => vec![byte],
        Err(_) => c.to_string().into_bytes(),
    }
}
