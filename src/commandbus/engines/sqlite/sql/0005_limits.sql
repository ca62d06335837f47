-- What a command is held back by: others of its group, and tags that a worker must have.
alter table commandbus_command add column group_key text;
alter table commandbus_command add column requires text;

-- Whether anything in a domain was ever held back: else nobody asks.
alter table commandbus_domain add column gated integer not null default 0;

create table commandbus_limit (
    domain      text not null,
    gate        text not null,
    concurrency integer,
    rate        real,
    burst       integer not null,
    primary key (domain, gate)
) without rowid;

-- What is due and waits at a gate, in the order in which it passes.
create table commandbus_held (
    domain       text not null,
    gate         text not null,
    priority     integer not null,
    seq          integer not null,
    attempts     integer not null,
    crashes      integer not null,
    releases     integer not null,
    available_at integer not null,
    primary key (domain, gate, priority, seq)
) without rowid;
create unique index commandbus_held_seq on commandbus_held (seq);

-- Who passed a gate and has not ended.
create table commandbus_slot (
    domain text not null,
    gate   text not null,
    seq    integer not null,
    primary key (domain, gate, seq)
) without rowid;
create index commandbus_slot_seq on commandbus_slot (seq);

-- When a gate is to be looked at: something came, something ended, or a token is due.
create table commandbus_touch (
    domain text not null,
    gate   text not null,
    at     integer not null,
    primary key (domain, gate)
) without rowid;
create index commandbus_touch_at on commandbus_touch (domain, at);

-- When the bucket of a gate is full.
create table commandbus_bucket (
    domain  text not null,
    gate    text not null,
    full_at integer not null,
    primary key (domain, gate)
) without rowid;

-- Ready work for workers with certain tags lies in the queue under `domain#tags`.
create table commandbus_place (
    domain   text not null,
    requires text not null,
    primary key (domain, requires)
) without rowid;
