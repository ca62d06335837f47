-- Processes: one row each, changed with every step, guarded by its version. Only what seldom changes is
-- indexed, so that most changes stay in their page.
create table commandbus.process (
    process_id   uuid primary key,
    seq          bigint generated always as identity,
    process_type text not null,
    reply_to     text not null,
    status       text not null,
    version      integer not null,
    state        text not null,
    progress     text not null,
    error        text,
    due_at       bigint,
    created_at   bigint not null,
    updated_at   bigint not null,
    finished_at  bigint,
    batch_id     uuid,
    parent_id    uuid
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);
create unique index process_seq on commandbus.process (seq);
create index process_due on commandbus.process (process_type, due_at) where due_at is not null;
create index process_status on commandbus.process (status, seq);
create index process_open on commandbus.process (seq) where finished_at is null;
create index process_batch on commandbus.process (batch_id, seq) where batch_id is not null;
create index process_parent on commandbus.process (parent_id, seq) where parent_id is not null;

-- What happened to processes and their steps; only ever added to.
create table commandbus.process_step (
    id         bigint generated always as identity primary key,
    process_id uuid not null,
    kind       text not null,
    step       text,
    command_id uuid,
    at         bigint not null,
    details    text not null
);
create index process_step_process on commandbus.process_step (process_id, id);

-- Results of durable steps inside handlers, kept once each.
create table commandbus.recorded_step (
    seq    bigint not null,
    name   text not null,
    result text not null,
    at     bigint not null,
    primary key (seq, name)
);
