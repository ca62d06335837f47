-- A sender holds the lock under which a domain's capacity is counted, and no other: under the rest of
-- them workers let commands pass.
create function commandbus.lock_capacity(the_domain text) returns boolean
    language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
    select commandbus.lock_mutex('capacity ' || the_domain, true)
$$;

-- As before, but no more than a whole bucket can be taken out: a sender is otherwise kept out for good
-- by another one that uses its name.
create or replace function commandbus.drain_bucket(the_domain text, sender text, until bigint)
    returns void
    language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
    update commandbus.bucket b set full_at = greatest(b.full_at, least(until,
        commandbus.now_us() + ceil(l.burst * 1000000 / l.rate)::bigint))
    from commandbus.limit_rule l
    where b.domain = the_domain and b.gate = 's:' || sender and l.domain = the_domain and l.gate = 's'
$$;

revoke all on function commandbus.lock_capacity from public;
