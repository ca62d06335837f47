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
grant usage on schema :schema to :sender, :worker, :viewer, :admin;
grant execute on all functions in schema :schema to :sender, :worker, :admin;
grant usage on all sequences in schema :schema to :sender, :worker, :admin;
grant select on commandbus.migration to :sender, :worker, :viewer, :admin;

-- A sender adds commands. It cannot read payloads, its own included, nor take or end anything.
grant insert on commandbus.command, commandbus.queue, commandbus.scheduled, commandbus.unique_key,
    commandbus.domain, commandbus.held, commandbus.touch, commandbus.place, commandbus.bucket to :sender;
grant select (seq, command_id, domain, batch_id, priority, due_at) on commandbus.command to :sender;
grant select on commandbus.queue, commandbus.scheduled, commandbus.unique_key, commandbus.domain,
    commandbus.sleeper, commandbus.limit_rule, commandbus.place, commandbus.bucket to :sender;
-- Keys whose time is over are freed by the next sender; a rate per sender is counted by it.
grant delete on commandbus.unique_key to :sender;
grant update on commandbus.bucket to :sender;
grant update (gated) on commandbus.domain to :sender, :worker;

-- A worker takes, ends and sends commands. What was sent, how it ended and the audit can only grow.
grant select, insert on commandbus.command, commandbus.outcome, commandbus.audit,
    commandbus.domain, commandbus.place to :worker;
grant select on commandbus.limit_rule to :worker;
grant select, insert, update, delete on commandbus.queue, commandbus.scheduled, commandbus.lease,
    commandbus.unique_key, commandbus.progress, commandbus.sleeper, commandbus.tally,
    commandbus.document, commandbus.batch_count, commandbus.process, commandbus.process_step,
    commandbus.recorded_step, commandbus.held, commandbus.slot, commandbus.touch,
    commandbus.bucket to :worker;

-- A viewer reads everything and changes nothing.
grant select on all tables in schema :schema to :viewer;

-- An admin is an operator: may change and purge all data, but no table.
grant select, insert, update, delete, truncate on all tables in schema :schema to :admin;
revoke insert, update, delete, truncate on commandbus.migration from :admin;

-- Over PGMQ, where it is installed: the tables of its queues have rights of their own.
do $$
begin
    if to_regprocedure('commandbus.pgmq_grants()') is not null then
        execute 'select commandbus.pgmq_grants()';
    end if;
end $$;
