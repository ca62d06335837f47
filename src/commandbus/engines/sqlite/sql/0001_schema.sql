-- What was sent. Written once; only an operator's edit of a parked payload ever changes a row.
-- `group_key` and `requires` (tags that a worker must have) hold a command back at a gate.
create table commandbus_command (
    seq            integer primary key autoincrement,
    command_id     blob not null,
    domain         text not null,
    command_type   text not null,
    data           text not null,
    correlation_id blob not null,
    causation_id   blob,
    reply_to       text,
    priority       integer not null,
    max_attempts   integer,
    created_at     integer not null,
    due_at         integer not null,
    expires_at     integer,
    unique_key     text,
    tags           text,
    headers        text,
    batch_id       blob,
    group_key      text,
    requires       text
);
create unique index commandbus_command_id on commandbus_command (command_id, domain);
create index commandbus_command_batch on commandbus_command (batch_id, seq) where batch_id is not null;
-- The commands of a process are found by their correlation; most commands are their own.
create index commandbus_command_correlation on commandbus_command (correlation_id)
    where correlation_id <> command_id;

-- What may run now, in the order in which it runs. Claiming deletes the row.
create table commandbus_queue (
    domain       text not null,
    priority     integer not null,
    seq          integer not null,
    attempts     integer not null,
    crashes      integer not null,
    releases     integer not null,
    available_at integer not null,
    primary key (domain, priority, seq)
) without rowid;

-- What may run later, in order of time; promoted to the queue by range when due.
create table commandbus_scheduled (
    domain   text not null,
    due_at   integer not null,
    seq      integer not null,
    attempts integer not null,
    crashes  integer not null,
    releases integer not null,
    primary key (domain, due_at, seq)
) without rowid;
create unique index commandbus_scheduled_seq on commandbus_scheduled (seq);

-- What runs: one row per claimed batch; `members` is a JSON array of the commands still under it.
create table commandbus_lease (
    lease_id   integer primary key autoincrement,
    domain     text not null,
    worker     text not null,
    claimed_at integer not null,
    until      integer not null,
    members    text not null
);

-- How it ended. The primary key makes a second outcome impossible.
create table commandbus_outcome (
    seq         integer primary key,
    status      text not null,
    attempts    integer not null,
    crashes     integer not null,
    lease_id    integer,
    worker      text,
    started_at  integer,
    finished_at integer not null,
    result      text,
    error       text,
    reason      text
);
create index commandbus_outcome_status on commandbus_outcome (status, seq) where status <> 'COMPLETED';

-- What the columns above do not say: failed attempts, releases, lost workers, operators' actions.
create table commandbus_audit (
    id      integer primary key autoincrement,
    seq     integer not null,
    kind    text not null,
    at      integer not null,
    details text not null
);
create index commandbus_audit_seq on commandbus_audit (seq);

-- Unique keys that live commands hold.
create table commandbus_unique_key (
    domain     text not null,
    unique_key text not null,
    seq        integer not null,
    primary key (domain, unique_key)
) without rowid;

-- How far running commands say they are.
create table commandbus_progress (
    seq     integer primary key,
    percent real not null,
    message text not null,
    at      integer not null
);

-- `gated`: whether a command of the domain was ever held back. Without it no gate is looked at.
create table commandbus_domain (
    domain        text primary key,
    paused_at     integer,
    paused_reason text,
    paused_by     text,
    gated         integer not null default 0
) without rowid;

-- How many ended how, so that statistics need not count.
create table commandbus_tally (
    domain text not null,
    status text not null,
    n      integer not null,
    primary key (domain, status)
) without rowid;

-- Small named states that processes share; what they mean is decided above the store.
create table commandbus_document (
    kind    text not null,
    key     text not null,
    version integer not null,
    status  text not null,
    due_at  integer,
    body    text not null,
    primary key (kind, key)
) without rowid;
create index commandbus_document_due on commandbus_document (kind, due_at, key) where due_at is not null;
create index commandbus_document_status on commandbus_document (kind, status, key);

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

-- Processes: one row each, changed with every step, guarded by its version.
create table commandbus_process (
    seq          integer primary key autoincrement,
    process_id   blob not null unique,
    process_type text not null,
    reply_to     text not null,
    status       text not null,
    version      integer not null,
    state        text not null,
    progress     text not null,
    error        text,
    due_at       integer,
    created_at   integer not null,
    updated_at   integer not null,
    finished_at  integer,
    batch_id     blob,
    parent_id    blob
);
create index commandbus_process_due on commandbus_process (process_type, due_at) where due_at is not null;
create index commandbus_process_status on commandbus_process (status, seq);
create index commandbus_process_open on commandbus_process (seq) where finished_at is null;
create index commandbus_process_batch on commandbus_process (batch_id, seq) where batch_id is not null;
create index commandbus_process_parent on commandbus_process (parent_id, seq)
    where parent_id is not null;

-- What happened to processes and their steps; only ever added to.
create table commandbus_process_step (
    id         integer primary key autoincrement,
    process_id blob not null,
    kind       text not null,
    step       text,
    command_id blob,
    at         integer not null,
    details    text not null
);
create index commandbus_process_step_process on commandbus_process_step (process_id, id);

-- Results of durable steps inside handlers, kept once each.
create table commandbus_recorded_step (
    seq    integer not null,
    name   text not null,
    result text not null,
    at     integer not null,
    primary key (seq, name)
) without rowid;

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
create table commandbus_permit (
    domain text not null,
    gate   text not null,
    seq    integer not null,
    primary key (domain, gate, seq)
) without rowid;
create index commandbus_permit_seq on commandbus_permit (seq);

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
create table commandbus_partition (
    domain   text not null,
    requires text not null,
    primary key (domain, requires)
) without rowid;
