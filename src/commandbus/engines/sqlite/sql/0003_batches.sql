-- The batch that a command belongs to.
alter table commandbus_command add column batch_id blob;
create index commandbus_command_batch on commandbus_command (batch_id, seq) where batch_id is not null;

-- How many commands of a batch ended how, in shards that one writer each adds to.
create table commandbus_batch_count (
    batch_id  blob not null,
    shard     text not null,
    completed integer not null,
    failed    integer not null,
    canceled  integer not null,
    parked    integer not null,
    primary key (batch_id, shard)
) without rowid;
