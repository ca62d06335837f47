-- name: functions
-- What a program that connects as a sender uses in place of statements on tables: the statement of
-- insert.sql behind the checks of `send_problem`, which are made of what is not plain.
create or replace function commandbus.send_commands({signature})
    returns table (added bigint, wait bigint)
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    problem text;
begin
    select coalesce(
        commandbus.send_problem(i.domain, i.command_type, i.data, i.reply_to, i.priority, i.max_attempts,
            i.delay, i.due_at, i.expires_at, i.unique_key, i.tags, i.headers, i.group_key, i.requires,
            67108864),
        case when i.batch_id is not null then 'a sender cannot add commands to a batch' end)
    into problem from {commands} as i order by 1 nulls last limit 1;
    if problem is null and :origin::text !~ '^[0-9a-z]{0,32}$' then
        problem := format('the origin %s is not valid', quote_literal(left(:origin::text, 80)));
    end if;
    if problem is not null then
        raise exception '%', problem using errcode = 'invalid_parameter_value';
    end if;
    return query {insert};
end $$;
revoke all on function commandbus.send_commands({signature}) from public;
