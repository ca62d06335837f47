-- compatible from: 4
-- Adds one command that is as plain as most are: due at once, and nothing said beyond its payload and
-- priority. One look tells whether anything else is to be done for it, because its domain is new or has
-- gates, or somebody sleeps; then it goes the long way.
--
-- The lock comes before the look, as in the function wake: whoever is not seen asleep cannot fall
-- asleep before this transaction ends. A caller's REPEATABLE READ transaction sees nothing new.
create function commandbus.add_plain(command_id uuid, domain text, command_type text, data text,
    priority integer, origin text, announce boolean, out seq bigint)
    language plpgsql volatile
as $$
#variable_conflict use_column
declare
    locked text := case when announce then
        pg_advisory_xact_lock_shared(commandbus.wake_key(add_plain.domain))::text end;
    now_at bigint := commandbus.now_us();
    ready  boolean;
begin
    select exists (select 1 from commandbus.domain d where d.domain = add_plain.domain and not d.gated)
        and not (announce and exists (select 1 from commandbus.sleeper s
            where s.domain = add_plain.domain and s.process <> origin and s.until > now_at))
    into ready;
    if not ready or current_setting('transaction_isolation') <> 'read committed' then
        seq := (commandbus.add(add_plain.command_id, add_plain.domain, add_plain.command_type,
            add_plain.data, null, null, null, add_plain.priority, null, 0, null, null, null, null, null,
            null, null, null, origin, announce)).seq;
        return;
    end if;
    seq := nextval('commandbus.command_seq_seq');
    insert into commandbus.command (seq, command_id, domain, command_type, data, correlation_id,
        priority, created_at, due_at)
    values (add_plain.seq, add_plain.command_id, add_plain.domain, add_plain.command_type,
        add_plain.data, add_plain.command_id, add_plain.priority, now_at, now_at);
    insert into commandbus.queue (domain, priority, seq, available_at)
    values (add_plain.domain, add_plain.priority, add_plain.seq, now_at);
end $$;
