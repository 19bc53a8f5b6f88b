//! Data sets of text as sequences of tokens: documents are concatenated and cut into sequences of the model's length. The labels are the
//! next tokens.
//!
//! Texts are tokenized once when the set is opened, to count the tokens and record the position of about every 4096th one. Sequences can
//! therefore be read in any order. Only these positions are in memory, and as many tokens as allowed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use forebay_base::{DataType, Tensor};

use crate::archive_set::label_type;
use crate::arrays::HeldBytes;
use crate::convert::convert;
use crate::dataset::{Batch, Description, Requirements, Source, described, size_of_files};
use crate::digest::Digest;
use crate::documents::{Documents, Piece, Place};
use crate::error::DataError;
use crate::reading::TextOptions;
use crate::tokens::Tokens;

/// The approximate number of tokens between two recorded positions.
const CHUNK_TOKENS: u64 = 4096;
/// The number of bytes of text that are tokenized at once.
const AT_ONCE_BYTES: usize = 1 << 20;
/// Less text than this is not worth another thread.
const THREAD_BYTES_MIN: usize = 64 << 10;

/// The position of the first token of a sequence.
struct Mark {
    /// The piece.
    place: Place,
    /// The number of tokens before it in the piece.
    skip: u32,
}

/// The contents of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The tokens.
    Tokens,
    /// Ones, because every position counts.
    Mask,
    /// 0, 1, 2, ...
    Positions,
    /// Zeros.
    Types,
}

struct TextSet {
    documents: Documents,
    tokens: Tokens,
    roles: Vec<Role>,
    requirements: Requirements,
    /// The number of tokens in a sequence.
    length: u64,
    /// The number of sequences from one mark to the next.
    per_mark: u64,
    marks: Vec<Mark>,
    token_count: u64,
    /// For each mark, its tokens and one more.
    kept: BTreeMap<u64, Arc<[u32]>>,
    kept_bytes: u64,
    kept_bytes_max: u64,
}

/// Opens files of text and tokenizes them once.
///
/// # Errors
/// [`DataError`] naming the file and the byte, or if there is no tokenizer, the model takes no tokens, or there is less text than one
/// sequence.
pub fn open(
    path: &Path,
    requirements: &Requirements,
    options: &TextOptions,
    held: HeldBytes,
) -> Result<Box<dyn Source>, DataError> {
    let Some(tokenizer) = &options.tokenizer else {
        let reason = "text requires a tokenizer; pass a tokenizer.json with --tokenizer";
        return Err(DataError::unsupported(path.display().to_string(), reason));
    };
    let (roles, length) =
        roles(requirements).map_err(|reason| DataError::unsupported(path.display().to_string(), reason))?;
    let mut set = TextSet {
        documents: Documents::open(path, options.key.as_deref())?,
        tokens: Tokens::open(tokenizer, options.end_token.as_deref())?,
        roles,
        requirements: requirements.clone(),
        length,
        per_mark: CHUNK_TOKENS.div_ceil(length),
        marks: Vec::new(),
        token_count: 0,
        kept: BTreeMap::new(),
        kept_bytes: 0,
        kept_bytes_max: held.bytes(),
    };
    set.count()?;
    // Marks take precedence: tokens can be computed again.
    set.keep_at_most(held.bytes().saturating_sub(set.marks_bytes()), 0);
    if set.sample_count() == 0 {
        let reason = format!(
            "{} tokens of text are fewer than one sequence of {length} and the token that follows it",
            set.token_count
        );
        return Err(DataError::unsupported(path.display().to_string(), reason));
    }
    Ok(Box::new(set))
}

/// Returns the contents of the inputs, and the length of sequences.
///
/// # Errors
/// A message that says why the model takes no text.
fn roles(requirements: &Requirements) -> Result<(Vec<Role>, u64), String> {
    let role = |name: &str| match name {
        "attention_mask" => Role::Mask,
        "position_ids" => Role::Positions,
        "token_type_ids" => Role::Types,
        _ => Role::Tokens,
    };
    let roles: Vec<Role> = requirements.inputs.iter().map(|input| role(&input.name)).collect();
    let described =
        |input: &crate::dataset::InputDescription| described(&input.name, input.data_type, &input.sample_shape);
    let all: Vec<String> = requirements.inputs.iter().map(described).collect();
    let mut tokens = requirements.inputs.iter().zip(&roles).filter(|(_, role)| **role == Role::Tokens);
    let (Some((input, _)), None) = (tokens.next(), tokens.next()) else {
        return Err(format!(
            "text requires a model with one input of tokens besides attention_mask, position_ids and token_type_ids; this model's inputs are {}",
            all.join(", ")
        ));
    };
    let [length] = input.sample_shape[..] else {
        return Err(format!(
            "text requires an input of whole numbers [batch, length]; this model's inputs are {}",
            all.join(", ")
        ));
    };
    if length == 0
        || requirements.inputs.iter().any(|input| input.data_type.is_float() || input.sample_shape != [length])
    {
        return Err(format!(
            "text requires inputs of whole numbers [batch, length], all of the same length; this model's inputs are {}",
            all.join(", ")
        ));
    }
    if requirements.label_shape != [length] || label_type(requirements).is_float() {
        return Err(format!(
            "the labels of text are the next tokens, {length} for each sequence, but this model and loss require {}{:?} per sample (a language model outputs [batch, {length}, vocabulary]; use --class-axis -1)",
            label_type(requirements),
            requirements.label_shape
        ));
    }
    Ok((roles, length))
}

impl TextSet {
    fn marks_bytes(&self) -> u64 {
        (self.marks.len() * size_of::<Mark>()) as u64
    }

    /// Returns the number of tokens from one mark to the next.
    fn mark_tokens(&self) -> u64 {
        self.per_mark * self.length
    }

    /// Goes through all texts to count tokens and record their positions, and keeps tokens as far as allowed.
    fn count(&mut self) -> Result<(), DataError> {
        let mut place = Place::default();
        let mut pending: Vec<u32> = Vec::new();
        let (step, mut is_end) = (self.mark_tokens(), false);
        while !is_end {
            let (mut pieces, mut bytes): (Vec<(Place, Piece)>, usize) = (Vec::new(), 0);
            while bytes < AT_ONCE_BYTES {
                let Some(piece) = self.documents.piece(place)? else {
                    is_end = true;
                    break;
                };
                bytes += piece.text.len();
                let at = std::mem::replace(&mut place, piece.next);
                pieces.push((at, piece));
            }
            for (tokens, (at, _)) in tokenized(&self.tokens, &pieces, bytes)?.iter().zip(&pieces) {
                let before = self.token_count;
                self.token_count += tokens.len() as u64;
                while (self.marks.len() as u64) * step < self.token_count {
                    let skip = self.marks.len() as u64 * step - before;
                    self.marks.push(Mark { place: *at, skip: skip as u32 });
                }
                pending.extend_from_slice(tokens);
                while pending.len() as u64 > step {
                    let mark = (self.token_count - pending.len() as u64) / step;
                    self.keep(mark, pending[..=step as usize].into());
                    pending.drain(..step as usize);
                }
            }
        }
        let mark = (self.token_count - pending.len() as u64) / step;
        self.keep(mark, pending.into());
        Ok(())
    }

    /// Keeps tokens if there is room.
    fn keep(&mut self, mark: u64, tokens: Arc<[u32]>) {
        let bytes = 4 * tokens.len() as u64;
        if self.kept_bytes + bytes <= self.kept_bytes_max && self.kept.insert(mark, tokens).is_none() {
            self.kept_bytes += bytes;
        }
    }

    /// Returns the tokens from a mark to the next one, and one more if there is one.
    fn of_mark(&mut self, number: u64) -> Result<Arc<[u32]>, DataError> {
        if let Some(tokens) = self.kept.get(&number) {
            return Ok(tokens.clone());
        }
        let (step, mark) = (self.mark_tokens(), &self.marks[number as usize]);
        let wanted = (self.token_count - number * step).min(step + 1);
        let (mut tokens, mut place, skip) = (Vec::new(), mark.place, mark.skip as usize);
        while ((tokens.len() - skip.min(tokens.len())) as u64) < wanted {
            let piece = self.documents.piece(place)?.ok_or_else(|| {
                let path = self.documents.paths().first().map_or(String::new(), |path| path.display().to_string());
                DataError::malformed(path, "it has changed; it has fewer tokens than when it was opened")
            })?;
            self.tokens.push(&piece.text, piece.is_last, &mut tokens)?;
            place = piece.next;
        }
        let tokens: Arc<[u32]> = tokens[skip..skip + wanted as usize].into();
        self.keep(number, tokens.clone());
        Ok(tokens)
    }

    /// Returns an input for these sequences.
    fn input(&self, role: Role, data_type: DataType, name: &str, sequences: &[Vec<i64>]) -> Result<Tensor, DataError> {
        let length = self.length as usize;
        let values: Vec<i64> = match role {
            Role::Tokens => sequences.iter().flat_map(|sequence| &sequence[..length]).copied().collect(),
            Role::Mask => vec![1; sequences.len() * length],
            Role::Positions => sequences.iter().flat_map(|_| 0..length as i64).collect(),
            Role::Types => vec![0; sequences.len() * length],
        };
        convert(
            Tensor::from_i64(&[sequences.len() as u64, self.length], &values),
            data_type,
            1.0,
            &format!("input {name}"),
        )
    }
}

/// Tokenizes pieces, on up to as many threads as the machine has.
fn tokenized(tokens: &Tokens, pieces: &[(Place, Piece)], bytes: usize) -> Result<Vec<Vec<u32>>, DataError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.min(bytes.div_ceil(THREAD_BYTES_MIN)).max(1);
    let tokenize = |pieces: &[(Place, Piece)]| -> Result<Vec<Vec<u32>>, DataError> {
        let of_piece = |(_, piece): &(Place, Piece)| {
            let mut found = Vec::new();
            tokens.push(&piece.text, piece.is_last, &mut found).map(|()| found)
        };
        pieces.iter().map(of_piece).collect()
    };
    if threads == 1 {
        return tokenize(pieces);
    }
    let parts: Vec<_> = std::thread::scope(|scope| {
        let parts = pieces.chunks(pieces.len().div_ceil(threads));
        let running: Vec<_> = parts.map(|part| scope.spawn(move || tokenize(part))).collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    Ok(parts.into_iter().collect::<Result<Vec<_>, _>>()?.concat())
}

impl Source for TextSet {
    fn description(&self) -> Result<Description, DataError> {
        let inputs = &self.requirements.inputs;
        let end = self
            .tokens
            .end()
            .map_or("documents end without a token".to_owned(), |end| format!("documents end with {end}"));
        let left = self.token_count - self.sample_count() * self.length;
        Ok(Description {
            kind: format!(
                "{}: {} tokens from a vocabulary of {} ({}), {end}; the last {left} do not begin a whole sequence",
                self.documents.kind(),
                self.token_count,
                self.tokens.vocabulary(),
                self.tokens.path().display()
            ),
            tensors: inputs
                .iter()
                .map(|input| described(&input.name, input.data_type, &input.sample_shape))
                .chain([format!("{}, the next tokens", described("labels", DataType::Int64, &[self.length]))])
                .collect(),
            size_bytes: size_of_files(self.documents.paths())?,
            held_bytes: self.marks_bytes() + self.kept_bytes,
            ..Description::default()
        })
    }

    fn sample_count(&self) -> u64 {
        // The last label is the token after the sequence.
        self.token_count.saturating_sub(1) / self.length
    }

    fn batch(&mut self, samples: &[u64]) -> Result<Batch, DataError> {
        let mut sequences: Vec<Vec<i64>> = Vec::with_capacity(samples.len());
        for &sample in samples {
            assert!(sample < self.sample_count(), "sample {sample} of {}", self.sample_count());
            let tokens = self.of_mark(sample / self.per_mark)?;
            let at = (sample % self.per_mark * self.length) as usize;
            sequences.push(tokens[at..=at + self.length as usize].iter().map(|&token| i64::from(token)).collect());
        }
        let inputs = self.requirements.inputs.iter().zip(&self.roles);
        let inputs = inputs.map(|(input, &role)| {
            Ok((input.name.clone(), self.input(role, input.data_type, &input.name, &sequences)?))
        });
        let inputs = inputs.collect::<Result<_, DataError>>()?;
        let next: Vec<i64> = sequences.iter().flat_map(|sequence| &sequence[1..]).copied().collect();
        let labels = Tensor::from_i64(&[samples.len() as u64, self.length], &next);
        Ok(Batch { inputs, labels: convert(labels, label_type(&self.requirements), 1.0, "labels")? })
    }

    fn keep_at_most(&mut self, bytes: u64, _count: u64) {
        self.kept_bytes_max = bytes;
        while self.kept_bytes > bytes {
            let Some((_, tokens)) = self.kept.pop_last() else { break };
            self.kept_bytes -= 4 * tokens.len() as u64;
        }
    }

    fn digest(&self, samples: Range<u64>, digest: &mut Digest) -> Result<(), DataError> {
        for number in [samples.start, samples.end, self.length, self.token_count] {
            digest.add(&number.to_le_bytes());
        }
        digest.add_files(self.documents.paths().into_iter().chain([self.tokens.path()]))
    }
}
