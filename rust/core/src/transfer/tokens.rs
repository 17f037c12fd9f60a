//! Where the tokens of a page lie in its bytes.

use std::ops::Range;

/// One dimension of a [`TokenPart`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenDim {
    /// How many steps the dimension has.
    pub extent: usize,
    /// How many tokens one step goes on; 0 for a dimension within a token.
    pub tokens: usize,
}

/// A part of one of the engine's blocks of a layer, in payload order: an array of cells, each of which belongs to one
/// token.
///
/// The token of a cell is `first` plus the index in each dimension times the dimension's tokens, counted from the
/// start of the engine's block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenPart {
    /// The token of the first cell.
    pub first: usize,
    /// The dimensions, outermost first.
    pub dims: Vec<TokenDim>,
    /// Bytes of a cell.
    pub bytes: usize,
}

impl TokenPart {
    /// Bytes of all cells, if memory can hold as many.
    fn total(&self) -> Option<usize> {
        let mut extents = self.dims.iter().map(|dim| dim.extent);
        let total = extents.try_fold(self.bytes, usize::checked_mul);
        total.filter(|bytes| *bytes > 0 && isize::try_from(*bytes).is_ok())
    }

    /// How many tokens the part has, if each has the same number of cells and none is missing in between.
    fn tokens(&self) -> Option<usize> {
        let mut steps: Vec<_> = self.dims.iter().filter(|dim| dim.tokens > 0).collect();
        steps.sort_unstable_by_key(|dim| dim.tokens);
        steps.iter().try_fold(1_usize, |tokens, dim| {
            let follows = dim.tokens == tokens || dim.extent == 1;
            tokens.checked_mul(dim.extent).filter(|_| follows)
        })
    }
}

/// Calls `each` with the cells of the first `tokens` tokens, as ranges in payload order. The cells of `dims` are
/// `total` bytes from `start` on, and the first is of token `first`.
fn walk(
    dims: &[TokenDim],
    total: usize,
    first: usize,
    tokens: usize,
    start: usize,
    each: &mut impl FnMut(Range<usize>),
) {
    let last = first
        + dims
            .iter()
            .map(|d| (d.extent - 1) * d.tokens)
            .sum::<usize>();
    if last < tokens {
        return each(start..start + total);
    }
    let Some((dim, inner)) = dims.split_first().filter(|_| first < tokens) else {
        return;
    };
    let bytes = total / dim.extent;
    // A step is real as a whole if the last token in it is.
    let ahead: usize = inner.iter().map(|d| (d.extent - 1) * d.tokens).sum();
    let whole = match dim.tokens {
        0 => 0,
        step => tokens.saturating_sub(first + ahead).div_ceil(step),
    };
    if whole > 0 {
        each(start..start + whole * bytes);
    }
    for step in whole..dim.extent {
        let (first, start) = (first + step * dim.tokens, start + step * bytes);
        if first >= tokens {
            break;
        }
        walk(inner, bytes, first, tokens, start, each);
    }
}

/// Checks that the parts of a layer's block are `bytes` together, and that each of `tokens` tokens has an equal share.
///
/// # Errors
/// A text that says what was expected and found.
pub(super) fn check(
    parts: &[TokenPart],
    bytes: usize,
    tokens: usize,
) -> std::result::Result<(), String> {
    if tokens == 0 || tokens > bytes {
        return Err(format!(
            "token parts: expected at least a byte of each of {tokens} tokens, found {bytes} bytes"
        ));
    }
    let mut shares = vec![0_usize; tokens];
    let mut sum = 0_usize;
    for (index, part) in parts.iter().enumerate() {
        let (Some(total), Some(count)) = (part.total(), part.tokens()) else {
            return Err(format!(
                "token part {index}: expected cells of consecutive tokens, found {part:?}"
            ));
        };
        let range = part.first..part.first.saturating_add(count);
        let Some(shares) = shares.get_mut(range) else {
            return Err(format!(
                "token part {index}: expected tokens below {tokens}, found {count} from {} on",
                part.first
            ));
        };
        sum = sum.saturating_add(total);
        for share in shares {
            *share += total / count;
        }
    }
    if sum != bytes {
        return Err(format!(
            "token parts: expected {bytes} bytes in all, found {sum}"
        ));
    }
    match shares.iter().position(|share| *share != shares[0]) {
        None => Ok(()),
        Some(token) => Err(format!(
            "token parts: expected equally many bytes of each of {tokens} tokens, found {} of token 0 and {} of token \
             {token}",
            shares[0], shares[token]
        )),
    }
}

/// The bytes of the first `tokens` tokens of a layer's block: disjoint ranges of its payload, in order.
pub(super) fn real(parts: &[TokenPart], tokens: usize) -> Vec<Range<usize>> {
    let (mut ranges, mut start) = (Vec::<Range<usize>>::new(), 0);
    for part in parts {
        let total = part.total().unwrap_or(0);
        let mut add = |range: Range<usize>| match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        };
        walk(&part.dims, total, part.first, tokens, start, &mut add);
        start += total;
    }
    ranges
}
