-- Roles that own nothing and cannot log in; grant them to the users of your programs:
--     grant :worker to my_service;
-- Repeating all of this is harmless. Run it again after every upgrade.
do $$
declare
    role text;
begin
    foreach role in array array['sender', 'worker', 'viewer', 'admin'] loop
        if not exists (select 1 from pg_roles where rolname = :prefix || '_' || role) then
            execute format('create role %I nologin', :prefix || '_' || role);
        end if;
    end loop;
end $$;

revoke all on all tables in schema :schema from :sender, :worker, :viewer, :admin;
revoke all on all sequences in schema :schema from :sender, :worker, :viewer, :admin;
revoke all on all functions in schema :schema from public, :sender, :worker, :viewer, :admin;
grant usage on schema :schema to :sender, :worker, :viewer, :admin;
grant execute on all functions in schema :schema to :worker, :admin;
-- A trigger on a table of their own could otherwise call it, and move the mark of the last link.
revoke execute on function commandbus.mark_ledger from :worker, :admin;
grant usage on all sequences in schema :schema to :worker, :admin;
grant select on commandbus.migration to :sender, :worker, :viewer, :admin;

-- A sender adds commands by functions that check them, and has no right on any other table. It cannot
-- read payloads, its own included, nor take, repeat or end anything.
grant execute on function commandbus.send, commandbus.send_commands, commandbus.send_plain, commandbus.holders_of,
    commandbus.known_among, commandbus.pending_in, commandbus.bucket_of, commandbus.drain_bucket,
    commandbus.lock_capacity to :sender;

-- A worker takes, ends and sends commands. What was sent, how it ended and the audit can only grow.
grant select, insert on commandbus.command, commandbus.outcome, commandbus.receipt, commandbus.audit,
    commandbus.domain, commandbus.partition to :worker;
grant select on commandbus.limit_rule to :worker;
grant update (gated) on commandbus.domain to :worker;
grant select, insert, update, delete on commandbus.queue, commandbus.scheduled, commandbus.lease,
    commandbus.unique_key, commandbus.progress, commandbus.sleeper, commandbus.session, commandbus.tally,
    commandbus.document, commandbus.batch_count, commandbus.process, commandbus.process_step,
    commandbus.recorded_step, commandbus.held, commandbus.permit, commandbus.touch,
    commandbus.bucket to :worker;

-- What operators did is written by operators alone: a worker reads it, and neither adds entries of
-- theirs nor links, nor asks for a cancellation in another's name, nor asks anything of a worker.
-- Sign-ins are the dashboard's.
alter table commandbus.document enable row level security;
alter table commandbus.audit enable row level security;
drop policy if exists everything on commandbus.document;
drop policy if exists worker_reads on commandbus.document;
drop policy if exists worker_adds on commandbus.document;
drop policy if exists worker_changes on commandbus.document;
drop policy if exists worker_removes on commandbus.document;
drop policy if exists everything on commandbus.audit;
drop policy if exists worker_reads on commandbus.audit;
drop policy if exists worker_adds on commandbus.audit;
create policy everything on commandbus.document to :viewer, :admin using (true) with check (true);
create policy worker_reads on commandbus.document for select to :worker using (true);
create policy worker_adds on commandbus.document for insert to :worker
    with check (case kind
        when 'cancellation' then body::json #>> '{request,actor}' is null
        else kind not in ('ledger', 'ledger.head', 'ledger.open', 'action', 'worker.request')
            and kind not like 'sign\_in.%' end);
create policy worker_changes on commandbus.document for update to :worker
    using (kind not in
            ('ledger', 'ledger.head', 'ledger.open', 'action', 'cancellation', 'worker.request')
        and kind not like 'sign\_in.%');
create policy worker_removes on commandbus.document for delete to :worker
    using (kind not in ('ledger', 'ledger.head', 'ledger.open', 'action')
        and kind not like 'sign\_in.%');
create policy everything on commandbus.audit to :viewer, :admin using (true) with check (true);
create policy worker_reads on commandbus.audit for select to :worker using (true);
create policy worker_adds on commandbus.audit for insert to :worker
    with check (case
        when kind in ('OPERATOR_RETRY', 'OPERATOR_CANCEL', 'OPERATOR_COMPLETE', 'OPERATOR_CONTROL',
            'OPERATOR_EDIT', 'OPERATOR_RESEND', 'COMMENTED', 'ASSIGNED', 'ERASED') then false
        -- Carrying out what an operator has asked for; the request is that operator's.
        when kind = 'CANCELED' and details::json ->> 'actor' is not null then exists (
            select 1 from commandbus.command c join commandbus.document d on d.kind = 'cancellation'
                and d.key = c.domain || ' ' || c.command_id
            where c.seq = audit.seq
                and d.body::json #>> '{request,actor}' = details::json ->> 'actor')
        else true end);

-- A viewer reads everything and changes nothing.
grant select on all tables in schema :schema to :viewer;
grant execute on function commandbus.now_us, commandbus.partition_of, commandbus.as_jsonb,
    commandbus.group_parked, commandbus.ended_sessions, commandbus.receipt_of, commandbus.outcome_of,
    commandbus.unfolded, commandbus.ended_between, commandbus.ended_floor to :viewer;

-- An admin is an operator: may change and purge all data, but no table.
grant select, insert, update, delete, truncate on all tables in schema :schema to :admin;
revoke insert, update, delete, truncate on commandbus.migration, commandbus.ledger_mark from :admin;

-- Over PGMQ, where it is installed: the tables of its queues have rights of their own.
do $$
begin
    if to_regprocedure('commandbus.pgmq_grants()') is not null then
        execute 'select commandbus.pgmq_grants()';
    end if;
end $$;
