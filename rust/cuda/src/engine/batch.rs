//! Batches of entries that a GPU copies together: those of several transfers, or a part of one.

use std::collections::{HashMap, VecDeque};
use std::mem::size_of_val;
use std::ops::Range;

use hybrid_pages::transfer::{Direction, TILE_BYTES, Ticket, Transfers};

use crate::payload::{Patterns, Payload};
use crate::pinning::Pinned;

use super::buffers::BufferSizes;
use super::digests::check_entry;
use super::transfer::RunningTransfer;

/// Most bytes of a batch of stores, and of loads. A long batch delays those after it, and calls get slower as the
/// driver's queues grow. Beside a store, the engine's copy of the tokens that it sampled waits for a whole batch.
const MOST_BYTES: [u64; 2] = [16 << 20, 64 << 20];
/// Most copies of a batch.
const MOST_COPIES: u64 = 1024;
/// Most copies of a batch if each is a call of the driver.
const MOST_CALLS: u64 = 256;
const TILE: u64 = TILE_BYTES as u64;
/// Most transfers of a batch, each of which may wait for a point in another stream.
const MOST_TRANSFERS: usize = 32;

/// How the bytes of a batch move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Way {
    /// The device's copy engines, with a copy for each range that is adjacent on both sides.
    #[default]
    Copies,
    /// A kernel between small pieces and a staging buffer, and few copies between that and the slots.
    Staged,
    /// A kernel that reaches pinned slots over the bus itself.
    Kernel,
}

/// The transfers that have not ended, by ticket.
pub(super) type RunningTransfers = HashMap<Ticket, RunningTransfer>;

/// The entries of one transfer in a batch.
pub(super) struct BatchPart {
    pub(super) ticket: Ticket,
    pub(super) entries: Range<usize>,
}

/// Entries that a GPU copies together. The payload has the entries of all parts, in order.
#[derive(Default)]
pub(super) struct CopyBatch {
    pub(super) parts: Vec<BatchPart>,
    pub(super) payload: Payload,
    /// Transfers whose last entries are in this batch.
    pub(super) given: Vec<Ticket>,
    /// Whether the device computes digests for this batch.
    pub(super) digests: bool,
    /// Whether its slots are pinned. Entries with slots that are not go apart.
    pub(super) pinned: bool,
    pub(super) way: Way,
}

/// Makes batches from transfers that wait.
pub(super) struct BatchBuilder<'a> {
    pub(super) transfers: &'a Transfers,
    pub(super) patterns: &'a Patterns,
    pub(super) slots: &'a Pinned,
    pub(super) sizes: BufferSizes,
    /// Whether the device has kernels, and with them computes digests.
    pub(super) kernels: bool,
    /// A kernel moves pieces that are shorter than this on average.
    pub(super) kernel_below: u64,
    /// Whether many copies go to the driver in one call.
    pub(super) batched_copies: bool,
}

impl BatchBuilder<'_> {
    /// The next batch: entries from the front of a queue, as many as fit.
    pub(super) fn next(
        &self,
        direction: Direction,
        queue: &mut VecDeque<Ticket>,
        running: &mut RunningTransfers,
    ) -> CopyBatch {
        let mut batch = CopyBatch::default();
        let mut fence = None;
        while let Some(ticket) = queue.front().copied() {
            let transfer = running.get_mut(&ticket).expect("what waits has not ended");
            // Loads with different fences go apart, so that none waits for the fence of another. Stores wait for all
            // work before them.
            let same = fence.is_some() && fence == transfer.submitted.fence;
            let alike = direction == Direction::Store || same;
            let full = batch.parts.len() == MOST_TRANSFERS;
            if !batch.parts.is_empty() && (!alike || full) {
                break;
            }
            fence = transfer.submitted.fence;
            if !self.take(direction, ticket, transfer, &mut batch) {
                break;
            }
            queue.pop_front();
            batch.given.push(ticket);
        }
        batch.way = self.way(direction, &batch.payload, batch.pinned);
        batch
    }

    /// How a payload moves. Where zeros have to be written, a kernel does that.
    fn way(&self, direction: Direction, payload: &Payload, pinned: bool) -> Way {
        let Some(first) = payload.entries.first() else {
            return Way::Copies;
        };
        if !self.kernels || !pinned {
            return Way::Copies;
        }
        let zeros = direction == Direction::Store && payload.is_partial();
        let short = payload.bytes < self.kernel_below.saturating_mul(payload.pieces());
        if !zeros && !short {
            Way::Copies
        } else if first.bytes <= self.sizes.staging as u64 {
            Way::Staged
        } else {
            Way::Kernel
        }
    }

    /// Adds entries of a transfer to a batch. Returns whether there was room for all that were left.
    fn take(
        &self,
        direction: Direction,
        ticket: Ticket,
        transfer: &mut RunningTransfer,
        batch: &mut CopyBatch,
    ) -> bool {
        let (layout, memory) = (self.transfers.layout(), self.transfers.memory());
        let (first, cuts) = (transfer.next, self.slots.cuts());
        let mut full = false;
        while transfer.is_waiting() && !full {
            let (plan, index) = (&transfer.submitted.plan, transfer.next);
            let pinned = self.slots.are_pinned(&plan.entries()[index].slots);
            let begun = !batch.payload.entries.is_empty();
            // Pageable slots wait for the point of the queue's first transfer alone.
            if begun && pinned != batch.pinned || !pinned && !batch.given.is_empty() {
                full = true;
                break;
            }
            batch.pinned = pinned;
            let payload = &mut batch.payload;
            payload.push(layout, self.patterns, memory, cuts, plan, index);
            if payload.entries.len() > 1 && !self.holds(direction, payload, pinned) {
                payload.pop();
                full = true;
                break;
            }
            if !self.fits(payload) {
                let pieces = payload.strided.len();
                payload.pop();
                transfer.fail(format!(
                    "entry {index}: expected pieces for buffers of {} bytes, found {pieces}",
                    self.sizes.lists
                ));
                break;
            }
            let last = payload.entries.len() - 1;
            let wanted = direction == Direction::Store || plan.entries()[index].checksum.is_some();
            let here = self.kernels
                && !(direction == Direction::Load && payload.entries[last].is_partial());
            batch.digests |= wanted && here;
            if wanted
                && !here
                && direction == Direction::Load
                && let Err(why) = check_entry(plan, index, payload, last, None)
            {
                // The entry fails before any of its bytes move.
                payload.pop();
                transfer.fail(why);
                break;
            }
            transfer.next += 1;
        }
        // Entries of a failed transfer that are in the batch already still move, which does no harm.
        let taken = batch.payload.entries.len()
            - batch
                .parts
                .iter()
                .map(|part| part.entries.len())
                .sum::<usize>();
        if taken > 0 {
            transfer.open += taken;
            let entries = first..first + taken;
            batch.parts.push(BatchPart { ticket, entries });
        }
        !full
    }

    /// Whether the buffers hold a payload. They hold every entry with all of its tokens.
    fn fits(&self, payload: &Payload) -> bool {
        let lists = size_of_val(&*payload.strided) + size_of_val(&*payload.packed);
        lists <= self.sizes.lists && payload.tiles as usize * size_of::<u64>() <= self.sizes.digests
    }

    /// Whether a payload is small enough for a batch.
    fn holds(&self, direction: Direction, payload: &Payload, pinned: bool) -> bool {
        let way = self.way(direction, payload, pinned);
        let copies = match way {
            Way::Copies => payload.pieces(),
            Way::Staged => payload.packed.len() as u64,
            Way::Kernel => 0,
        };
        let most = match self.batched_copies {
            true => MOST_COPIES,
            false => MOST_CALLS,
        };
        let staged = way != Way::Staged || payload.tiles * TILE <= self.sizes.staging as u64;
        self.fits(payload)
            && payload.bytes <= MOST_BYTES[direction as usize]
            && copies <= most
            && staged
    }
}
