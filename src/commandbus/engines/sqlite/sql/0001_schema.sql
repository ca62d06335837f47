-- What was sent. Written once; only an operator's edit of a parked payload ever changes a row.
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
    headers        text
);
create unique index commandbus_command_id on commandbus_command (command_id, domain);

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

create table commandbus_domain (
    domain        text primary key,
    paused_at     integer,
    paused_reason text,
    paused_by     text
) without rowid;

-- How many ended how, so that statistics need not count.
create table commandbus_tally (
    domain text not null,
    status text not null,
    n      integer not null,
    primary key (domain, status)
) without rowid;
