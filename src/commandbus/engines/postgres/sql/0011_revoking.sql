-- A router calls off the commands of steps, with the role `worker`: that role has no right to change an
-- outcome, and needs none for these two.

-- The outcome of a command, locked, so that no operator takes a parked one up meanwhile.
create function commandbus.lock_outcome(the_seq bigint) returns setof commandbus.outcome
    language sql volatile rows 1 security definer set search_path = pg_catalog, pg_temp
as $$
    select * from commandbus.outcome where seq = the_seq for update
$$;

-- A parked command ends as CANCELED, and in no other way: it is neither run again nor forgotten.
create function commandbus.revoke_parked(the_seq bigint, the_reason text) returns boolean
    language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
    with ended as (
        update commandbus.outcome set status = 'CANCELED', lease_id = null, worker = null,
            started_at = null, finished_at = commandbus.now_us(), reason = the_reason
        where seq = the_seq and status = 'IN_TROUBLESHOOTING_QUEUE' returning seq),
    freed as (delete from commandbus.unique_key where seq in (select seq from ended)),
    tallied as (insert into commandbus.tally (domain, status, n)
        select c.domain, t.status, t.n from ended e join commandbus.command c on c.seq = e.seq,
            (values ('IN_TROUBLESHOOTING_QUEUE', -1), ('CANCELED', 1)) as t (status, n))
    select exists (select 1 from ended)
$$;

revoke all on function commandbus.lock_outcome, commandbus.revoke_parked from public;
