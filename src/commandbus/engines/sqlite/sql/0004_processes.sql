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

-- The commands of a process are found by their correlation; most commands are their own.
create index commandbus_command_correlation on commandbus_command (correlation_id)
    where correlation_id <> command_id;

-- Results of durable steps inside handlers, kept once each.
create table commandbus_recorded_step (
    seq    integer not null,
    name   text not null,
    result text not null,
    at     integer not null,
    primary key (seq, name)
) without rowid;
