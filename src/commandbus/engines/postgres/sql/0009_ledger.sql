-- The number of the last link over what operators did. Roles may not write it, so a chain whose tail was
-- cut off, and its head moved back, is shorter than it says.
create table commandbus.ledger_mark (
    only_row boolean primary key default true check (only_row),
    number   bigint not null
);
insert into commandbus.ledger_mark (number)
select coalesce(max(key::bigint), 0) from commandbus.document where kind = 'ledger';

create function commandbus.mark_ledger() returns trigger
    language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    update commandbus.ledger_mark set number = greatest(number, new.key::bigint);
    return null;
end $$;
revoke all on function commandbus.mark_ledger() from public;

create trigger mark_ledger after insert on commandbus.document
    for each row when (new.kind = 'ledger') execute function commandbus.mark_ledger();
