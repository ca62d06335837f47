-- name: functions
-- What a program that connects as a sender uses in place of statements on tables. They run with the rights
-- of their owner, so they check every command as the Python client does. The first is for one plain command.
create or replace function commandbus.send_plain(command_id uuid, domain text, command_type text, data text,
    priority integer, origin text, announce boolean) returns bigint
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    problem text := commandbus.send_problem(send_plain.domain, send_plain.command_type, send_plain.data, null,
        send_plain.priority, null, 0, null, null, null, null, null, null, null, 67108864);
begin
    if problem is null and origin !~ '^[0-9a-z]{0,32}$' then
        problem := format('the origin %s is not valid', quote_literal(left(origin, 80)));
    end if;
    if problem is not null then
        raise exception '%', problem using errcode = 'invalid_parameter_value';
    end if;
    return (commandbus.add_plain(send_plain.command_id, send_plain.domain, send_plain.command_type,
        send_plain.data, send_plain.priority, origin, announce));
end $$;
revoke all on function commandbus.send_plain from public;

-- The statement of insert.sql. Nearly all commands are plain, and one expression finds that out about all of
-- them; the function that names a problem is called for the others only.
create or replace function commandbus.send_commands({signature})
    returns table (added bigint, wait bigint)
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    problem text;
begin
    begin
        select {problem} into problem from {commands} as i
        where (i.domain ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,62}$'
            and i.command_type ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,62}$'
            and not starts_with(i.command_type, 'commandbus.')
            and i.priority between -32768 and 32767 and coalesce(i.delay, 0) = 0
            and num_nonnulls(i.due_at, {plainly_null}) = 0
            and octet_length(i.data) <= 67108864 and i.data !~ '[0-9]{19}|[0-9][eE]'
            -- Less than 128 bytes cannot be nested deeper than 64 levels; what is no JSON ends the look.
            and case when octet_length(i.data) < 128 then i.data::jsonb is not null
                else not jsonb_path_exists(i.data::jsonb,
                    'strict $.**{64} ? (@.type() == "object" || @.type() == "array")') end) is not true
        order by 1 nulls last limit 1;
    exception when data_exception or statement_too_complex then
        select {problem} into problem from {commands} as i order by 1 nulls last limit 1;
    end;
    if problem is null and :origin::text !~ '^[0-9a-z]{0,32}$' then
        problem := format('the origin %s is not valid', quote_literal(left(:origin::text, 80)));
    end if;
    if problem is not null then
        raise exception '%', problem using errcode = 'invalid_parameter_value';
    end if;
    return query {insert};
end $$;
revoke all on function commandbus.send_commands({signature}) from public;

-- A new column of a command is a new argument, and with it a new function beside the old one. The old one is
-- dropped, so that its name is unique; roles keep the right to send until their script is applied again.
do $$
declare
    current regprocedure := {form};
    old record;
    grantee record;
begin
    for old in
        select p.oid, p.oid::regprocedure as form, p.proacl from pg_proc p
        where (p.proname, p.pronamespace) = (select c.proname, c.pronamespace from pg_proc c where c.oid = current)
            and p.oid <> current
    loop
        for grantee in
            select r.rolname from aclexplode(old.proacl) a join pg_roles r on r.oid = a.grantee
            where a.privilege_type = 'EXECUTE' and r.oid <> a.grantor
        loop
            execute format('grant execute on function %s to %I', current, grantee.rolname);
        end loop;
        execute format('drop function %s', old.form);
    end loop;
end $$;

-- name: problem
coalesce(
    commandbus.send_problem(i.domain, i.command_type, i.data, i.reply_to, i.priority, i.max_attempts,
        i.delay, i.due_at, i.expires_at, i.unique_key, i.tags, i.headers, i.group_key, i.requires,
        67108864),
    case when i.batch_id is not null then 'a sender cannot add commands to a batch' end)
