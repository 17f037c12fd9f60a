//! The tests of the core, in one binary. What needs a process of its own has a binary of its own.

mod announced;
mod cache_costs;
mod cache_ends;
mod cache_hints;
mod cache_hits;
mod cache_model;
mod cache_month;
mod cache_namespaces;
mod cache_portions;
mod cache_reference;
mod cache_support;
mod cache_tenants;
mod cache_tips;
mod cache_writes;
mod geometry;
mod hints_model;
#[path = "../shared/live_cache.rs"]
mod live_cache;
mod plain_tier;
mod policies;
mod policy_cache;
mod restores;
mod tails;
mod tails_chats;
mod tiers;
mod tiers_model;
mod tiers_shared;
mod tiers_support;
mod tiers_tips;
mod tiers_unread;
mod transfer;
mod transfer_ends;
mod transfer_layouts;
mod transfer_model;
mod transfer_parts;
#[path = "../shared/transfer_plain.rs"]
mod transfer_plain;
#[path = "../shared/transfer_random.rs"]
mod transfer_random;
#[path = "../shared/transfer_support.rs"]
mod transfer_support;
#[path = "../shared/transfer_tokens.rs"]
mod transfer_tokens;
